"""--cache: a run on decoded images is the same run, and what cannot be kept leaves nothing behind."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_sets import load_info
from support.in_process import run_train
from support.launches import TINY
from support.rasters import write_raster

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from data_utils.loading.decoded_cache import decode_once
from runtime.errors import DataError
from tasks.classes.reader import ClassReader
from tasks.classes.target import ClassTarget
from unet import Preprocess

TARGET = ClassTarget(np.ones((2, 3), np.uint8))
FORK = multiprocessing.get_context("fork")


def test_a_cached_run_is_the_same_run(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags = ["--dataset", tiny_folder, *TINY, "--scale", "0.7", "--tracker", "none", "--epochs", "1"]
    flags += ["--log-every", "1", "--optimizer", "sgd"]
    runs = (run_train(tmp_path / "plain", *flags), run_train(tmp_path / "cached", *flags, "--cache"))
    assert [run.exit_code for run in runs] == [0, 0]
    assert ["decoding for the cache" in run.output for run in runs] == [False, True]
    plain, cached = ([{k: v for k, v in record.items() if "perf" not in k} for record in run.records] for run in runs)
    assert len(plain) > 4
    assert plain == cached
    assert len(list((tmp_path / "cache").rglob("*.arrow"))) == 2


def test_crops_of_cached_images_are_those_of_their_files(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    info = load_info(tiny_folder, crop_size=(24, 24))
    plain, cached = (TrainingDataset(info.train, info, Preprocess(scale=0.7)) for _ in range(2))
    cached.cache()
    for index in range(3):
        for epoch in range(3):
            image, target, *_ = plain[Slot(index, epoch, (24, 24))]
            cached_image, cached_target, *_ = cached[Slot(index, epoch, (24, 24))]
            assert torch.equal(image, cached_image)
            assert torch.equal(target.mask, cached_target.mask)


PAIR = (np.ones((1, 2, 3), np.uint8), TARGET)


def kill_this_process(index: int) -> None:
    """Die in the middle, as by the kernel when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def failing_at(failing: int, fail: Callable[[int], None]) -> Callable[[int], tuple[np.ndarray, ClassTarget]]:
    """The samples of a data set whose reading fails at one of them."""

    def prepare(index: int) -> tuple[np.ndarray, ClassTarget]:
        return fail(index) if index == failing else (np.full((1, 2, 3), index, np.uint8), TARGET)

    return prepare


def test_the_cache_that_a_run_left_that_was_killed_long_ago_is_cleared(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = FORK.Process(target=decode_once, args=(failing_at(5, kill_this_process), 9, ClassTarget, "killed", ()))
    run.start()
    run.join(60)
    assert run.exitcode == -signal.SIGKILL
    folder = tmp_path / "unet-accelerate"
    (left,) = folder.glob(".*.tmp")
    decode_once(lambda index: PAIR, 2, ClassTarget, "while it may still be written", ())
    assert left.exists()
    for path in (left, *left.iterdir()):
        os.utime(path, (0, 0))
    decoded = decode_once(lambda index: PAIR, 2, ClassTarget, "other", ())
    image, target = decoded[1]
    np.testing.assert_array_equal(image, PAIR[0])
    np.testing.assert_array_equal(target.mask, TARGET.mask)
    assert not list(folder.glob(".*.tmp"))
    assert len(list(folder.glob("*.arrow"))) == 2


@pytest.mark.parametrize("end", [-100, 0], ids=["cut off", "empty"])
def test_a_damaged_cache_is_made_again(tmp_path, monkeypatch, capsys, end):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    indices = []

    def prepare(index: int) -> tuple[np.ndarray, ClassTarget]:
        indices.append(index)
        return np.full((1, 2, 3), index, np.uint8), TARGET

    decode_once(prepare, 3, ClassTarget, "key", ())
    (file,) = (tmp_path / "unet-accelerate").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:end])
    decoded = decode_once(prepare, 3, ClassTarget, "key", ())
    assert sorted(indices) == [0, 0, 1, 1, 2, 2]
    assert f"{file} is damaged; its samples are decoded again" in capsys.readouterr().out
    assert decoded[2][0].tolist() == [[[2] * 3] * 2]
    decode_once(prepare, 3, ClassTarget, "key", ())
    assert len(indices) == 6, "an undamaged file is used"


def fill_the_disk(index: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_cache_that_could_not_be_finished_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match=r"\(No space left on device\); free some space, or set XDG_CACHE_HOME"):
        decode_once(failing_at(5, fill_the_disk), 9, ClassTarget, "full", ())
    assert [path.suffix for path in (tmp_path / "unet-accelerate").iterdir()] == [".lock"]


def test_samples_that_are_no_files_are_not_cached():
    with pytest.raises(DataError, match="--cache works with local files only"):
        decode_once(lambda index: PAIR, 2, ClassTarget, None, ())


def write_pairs(folder: Path) -> Path:
    """A small image of values up to 1, and a JPEG of which a reduced size can be decoded; the masks hold 0, 1 and 9."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for kind in ("images", "masks"):
            (folder / split / kind).mkdir(parents=True)
        for name, shape in (("0.png", (48, 64)), ("1.jpg", (480, 640))):
            grey = Image.fromarray(rng.integers(0, 2, (48, 64), dtype=np.uint8) * (1 if name == "0.png" else 200))
            grey.resize(shape[::-1]).convert("RGB").save(folder / split / "images" / name)
            mask = np.zeros(shape, np.uint8)
            mask[: shape[0] // 2, :20], mask[:, -9:] = 1, 9
            Image.fromarray(mask).save(folder / split / "masks" / f"{name[0]}.png")
    return folder


def same(info: DatasetInfo) -> DatasetInfo:
    return info


def classes(*values: int, ignored: int | None = None) -> Callable:
    """The data set with classes of these mask values."""
    class_map = ClassMap(tuple(map(str, values)), values, ignored)
    return lambda info: replace(info, reader=ClassReader(class_map))


def grey(info: DatasetInfo) -> DatasetInfo:
    """The data set with one channel."""
    return replace(info, normalization=Normalization((0.0,), (1.0,), ("uint8",)))


def repainted(info: DatasetInfo) -> DatasetInfo:
    """The data set after one of its images has become black."""
    Image.new("RGB", (64, 48)).save(info.train.records[0]["image"])
    return load_info(info.config.dataset, on_bad_sample="skip")


def without_first(info: DatasetInfo) -> DatasetInfo:
    """The data set whose first image is known to be unusable."""
    return replace(info, train=replace(info.train, bad={0: "left out"}))


def samples(info: DatasetInfo, *, cached: bool, **settings) -> list[tuple]:
    """The two training samples of a data set, read from their files or from the cache."""
    dataset = EvaluationDataset(info.train, info, Preprocess(**{"scale": 0.4, **settings}))
    if cached:
        dataset.cache()
    read = [dataset[Slot(index, 0, (8, 8))] for index in range(2)]
    return [(image.tolist(), target.mask.tolist(), problem) for image, target, _, problem in read]


@pytest.mark.parametrize(
    ("before", "after", "preprocess"),
    [
        pytest.param(same, same, {"image_size": (20, 30)}, id="size"),
        pytest.param(same, same, {"scale": 0.25}, id="scale"),
        pytest.param(same, same, {"detect_unit_range": True}, id="unit range"),
        pytest.param(same, same, {"draft": False}, id="draft"),
        pytest.param(same, grey, {}, id="channels"),
        pytest.param(same, repainted, {}, id="file"),
        pytest.param(without_first, same, {}, id="bad"),
        pytest.param(same, classes(1, 0, 9), {}, id="class values"),
        pytest.param(classes(0, 1, ignored=9), classes(0, 1), {}, id="ignored value"),
    ],
)
def test_samples_that_another_run_has_cached_with_other_settings_are_not_used(
    tmp_path, monkeypatch, before, after, preprocess
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    info = load_info(write_pairs(tmp_path / "data"), on_bad_sample="skip")
    first = samples(before(info), cached=True)
    changed = after(info)
    expected = samples(changed, cached=False, **preprocess)
    assert expected != first
    assert samples(changed, cached=True, **preprocess) == expected


def test_cached_pixels_where_a_raster_holds_no_data_are_the_mean_of_this_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bands = np.full((1, 8, 8), 7, np.uint8)
    bands[0, 0] = 0
    (tmp_path / "data" / "masks").mkdir(parents=True)
    for name in "ab":
        write_raster(tmp_path / "data" / "images" / f"{name}.tif", bands, nodata=0)
        Image.fromarray(np.eye(8, dtype=np.uint8)).save(tmp_path / "data" / "masks" / f"{name}.png")
    info = load_info(tmp_path / "data", val_fraction=0.5)
    images = []
    for mean in (3.0, 5.0):
        dataset = EvaluationDataset(info.train, info, Preprocess(mean=(mean,)))
        dataset.cache()
        images.append(dataset[Slot(0, 0, (8, 8))][0])
    assert [image[0, 0].unique().tolist() for image in images] == [[3], [5]]
    assert all((image[0, 1:] == 7).all() for image in images)


def find_damage(index: int) -> None:
    raise DataError("b.png: is damaged")


def test_an_error_that_is_to_be_skipped_is_raised_for_its_sample(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    decoded = decode_once(failing_at(1, find_damage), 3, ClassTarget, "key", (DataError,))
    assert decoded[2][0].max() == 2
    with pytest.raises(DataError, match=r"^b\.png: is damaged$"):
        decoded[1]
