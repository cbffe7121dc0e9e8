"""--cache: a run on decoded images is the same run, and what cannot be kept leaves nothing behind."""

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY, load_info
from filelock import FileLock
from in_process import run_train
from PIL import Image
from rasters import write_raster

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.analysis.normalization import Normalization
from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.dataset import EvaluationDataset, TrainingDataset
from data_utils.loading.decoded_cache import DecodedSplit, decode_once
from data_utils.sources.load import load_records
from data_utils.targets.classes import ClassReader
from runtime.errors import DataError
from tasks.classes import ClassTarget
from unet import Preprocess

CLASSES = "0=background,255=cell"
TARGET = ClassTarget(np.ones((2, 3), np.uint8))
FORK = multiprocessing.get_context("fork")


@pytest.mark.parametrize(
    "crop",
    [
        pytest.param([], id="whole"),
        pytest.param(["--crop-size", "24", "24"], id="crop", marks=pytest.mark.slow),
    ],
)
def test_a_cached_run_is_the_same_run(tiny_folder, tmp_path, monkeypatch, crop):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags = ["--dataset", tiny_folder, *TINY, "--scale", "0.7", "--tracker", "none", "--epochs", "1", *crop]
    flags += ["--log-every", "1", "--optimizer", "sgd"]
    records = []
    for name, flag in (("plain", []), ("first", ["--cache"]), ("second", ["--cache"])):
        run = run_train(tmp_path / name, *flags, *flag)
        assert run.exit_code == 0, run.output
        assert ("decoding for the cache" in run.output) == (name == "first")
        records.append([{k: v for k, v in record.items() if "perf" not in k} for record in run.records])
    assert len(records[0]) > 4
    assert records[0] == records[1] == records[2]
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


def test_what_cannot_be_decoded_is_skipped_from_the_cache_too(broken, tmp_path):
    options = ["--classes", CLASSES, "--on-bad-sample", "skip", "--max-steps", "6", "--tracker", "none", *TINY]
    for name in ("first", "second"):
        run = run_train(tmp_path / name, "--dataset", broken, *options, "--cache")
        assert run.exit_code == 0, run.output
        assert "9 bad samples were skipped in training" in run.output


def test_what_a_killed_run_left_of_the_cache_is_cleared_and_what_another_is_writing_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pair, folder = (np.ones((1, 2, 3), np.uint8), TARGET), tmp_path / "unet-accelerate"

    def killed_at_5(index: int) -> tuple[np.ndarray, ClassTarget]:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)  # in the middle, as by the kernel when memory runs out
        return pair

    run = FORK.Process(target=decode_once, args=(killed_at_5, 9, ClassTarget, "killed", ()))
    run.start()
    run.join(60)
    assert run.exitcode == -signal.SIGKILL
    assert len(list(folder.glob(".*.tmp"))) == 1
    (folder / ".busy.arrow.0123abcd.tmp").write_bytes(b"x")
    with FileLock(folder / "busy.lock"):
        decoded = decode_once(lambda i: pair, 2, ClassTarget, "other", ())
    image, target = decoded[1]
    np.testing.assert_array_equal(image, pair[0])
    np.testing.assert_array_equal(target.mask, TARGET.mask)
    assert [path.name for path in folder.glob(".*.tmp")] == [".busy.arrow.0123abcd.tmp"]
    assert len(list(folder.glob("*.arrow"))) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "without checksum"])
def test_a_damaged_cache_is_made_again(tmp_path, monkeypatch, capsys, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    images = []

    def prepare(index: int) -> tuple[np.ndarray, ClassTarget]:
        images.append(index)
        return np.full((1, 2, 3), index, np.uint8), TARGET

    decode_once(prepare, 3, ClassTarget, "key", ())
    (file,) = (tmp_path / "unet-accelerate").glob("*.arrow")
    content = bytearray(file.read_bytes())
    if damage == "without checksum":
        file.with_suffix(".sha256").unlink()
    else:
        content[content.index(bytes([2] * 6))] ^= 1  # a pixel
        damaged = {"cut": content[:-100], "empty": b"", "flipped": content}
        file.write_bytes(damaged[damage])
    decoded = decode_once(prepare, 3, ClassTarget, "key", ())
    assert sorted(images) == [0, 0, 1, 1, 2, 2]
    assert f"{file} is damaged; its samples are decoded again" in capsys.readouterr().out
    assert decoded[2][0].tolist() == [[[2] * 3] * 2]
    decode_once(prepare, 3, ClassTarget, "key", ())
    assert len(images) == 6, "an undamaged file is used"


def test_a_cache_that_could_not_be_finished_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def prepare(index: int) -> tuple[np.ndarray, ClassTarget]:
        if index == 5:
            raise OSError(28, "No space left on device")
        return np.ones((1, 2, 3), np.uint8), TARGET

    with pytest.raises(DataError, match=r"\(No space left on device\); free some space, or set XDG_CACHE_HOME"):
        decode_once(prepare, 9, ClassTarget, "full", ())
    assert [path.suffix for path in (tmp_path / "unet-accelerate").iterdir()] == [".lock"]


def test_what_cannot_be_cached_says_so():
    key = load_records(DataConfig("shapes"))[0].digest
    with pytest.raises(DataError, match="--cache works with local files only"):
        decode_once(samples_of(1), 2, ClassTarget, key, ())


def test_samples_that_are_no_files_are_not_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    info = load_info("shapes")
    with pytest.raises(DataError, match="--cache works with local files only"):
        TrainingDataset(info.train, info, Preprocess()).cache()


def test_a_damaged_image_ends_the_decoding_unless_bad_samples_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    info = load_info(write_pairs(tmp_path / "data"))
    (tmp_path / "data/train/images/0.png").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"^0\.png: image cannot be read"):
        TrainingDataset(info.train, info, Preprocess()).cache()


class Complement(ClassTarget):
    """Another kind of target with an array of the same name."""


class ComplementReader(ClassReader):
    target = Complement

    def of_mask(self, values: np.ndarray, name: str) -> Complement:
        return Complement(255 - super().of_mask(values, name).mask)


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


def classes(*values: int, ignored: int | None = None, reader: type[ClassReader] = ClassReader) -> Callable:
    """The data set with classes of these mask values."""
    class_map = ClassMap(tuple(map(str, values)), values, ignored)
    return lambda info: replace(info, reader=reader(class_map, (1,) * len(values)))


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


@pytest.mark.parametrize(
    ("before", "after", "preprocess"),
    [
        (same, same, {"image_size": (20, 30)}),
        (same, same, {"scale": 0.25}),
        (same, same, {"detect_unit_range": True}),
        (same, same, {"draft": False}),
        (same, grey, {}),
        (same, repainted, {}),
        (without_first, same, {}),
        (same, classes(1, 0, 9), {}),
        (classes(0, 1, ignored=9), classes(0, 1), {}),
        (same, classes(0, 1, 9, reader=ComplementReader), {}),
    ],
    ids=["size", "scale", "unit range", "draft", "channels", "file", "bad", "class values", "ignored value", "target"],
)
def test_what_another_run_has_cached_with_other_settings_is_not_used(tmp_path, monkeypatch, before, after, preprocess):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    info = load_info(write_pairs(tmp_path / "data"), on_bad_sample="skip")

    def samples(info: DatasetInfo, *, cached: bool, **settings) -> list[tuple]:
        dataset = EvaluationDataset(info.train, info, Preprocess(**{"scale": 0.4, **settings}))
        if cached:
            dataset.cache()
        read = [dataset[Slot(index, 0, (8, 8))] for index in range(2)]
        return [(image.tolist(), target.mask.tolist(), problem) for image, target, _, problem in read]

    first = samples(before(info), cached=True)
    changed = after(info)
    expected = samples(changed, cached=False, **preprocess)
    assert expected != first
    assert samples(changed, cached=True, **preprocess) == expected


def test_what_stands_where_a_raster_holds_no_data_is_the_mean_of_this_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bands = np.full((1, 8, 8), 7, np.uint8)
    bands[0, 0] = 0
    for name in "ab":
        write_raster(tmp_path / "data" / "images" / f"{name}.tif", bands, nodata=0)
        (tmp_path / "data" / "masks").mkdir(exist_ok=True)
        Image.fromarray(np.eye(8, dtype=np.uint8)).save(tmp_path / "data" / "masks" / f"{name}.png")
    info = load_info(tmp_path / "data", val_fraction=0.5)
    for mean in (3.0, 5.0):
        dataset = EvaluationDataset(info.train, info, Preprocess(mean=(mean,)))
        dataset.cache()
        image = dataset[Slot(0, 0, (8, 8))][0]
        assert (image[0, 0] == mean).all()
        assert (image[0, 1:] == 7).all()


def samples_of(value: int):
    return lambda index: (np.full((1, 2, 2), value, np.uint8), ClassTarget(np.full((2, 2), value, np.uint8)))


@pytest.mark.parametrize(("rank", "local_rank", "is_mended"), [("2", "0", True), ("2", "1", False)])
def test_the_first_process_of_each_machine_compares_the_cache_with_its_checksum(
    tmp_path, monkeypatch, rank, local_rank, is_mended
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = decode_once(samples_of(1), 2, ClassTarget, "key", ())
    first.file.with_suffix(".sha256").write_text("another")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    again = decode_once(samples_of(2), 2, ClassTarget, "key", ())
    assert again[0][1].mask.max() == (2 if is_mended else 1)


def test_a_cache_is_made_once_and_its_samples_know_their_target_in_other_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    decode_once(samples_of(1), 2, ClassTarget, "key", ())
    once = decode_once(samples_of(2), 2, ClassTarget, "key", ())
    other = decode_once(samples_of(3), 2, ClassTarget, "another key", ())
    sent: DecodedSplit = pickle.loads(pickle.dumps(once))
    assert isinstance(sent[1][1], ClassTarget)
    assert sent[1][0].max() == 1
    assert other[1][0].max() == 3
    assert not [path for path in Path(tmp_path).rglob("*.tmp")]


def test_an_error_that_is_not_to_be_skipped_ends_the_decoding(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def prepare(index: int):
        if index == 1:
            raise DataError("b.png: is damaged")
        return samples_of(index)(index)

    with pytest.raises(DataError, match=r"^b\.png: is damaged$"):
        decode_once(prepare, 3, ClassTarget, "key", ())
    decoded = decode_once(prepare, 3, ClassTarget, "key", (DataError,))
    assert decoded[2][0].max() == 2
    with pytest.raises(DataError, match=r"^b\.png: is damaged$"):
        decoded[1]


def test_arrays_are_kept_in_any_order_of_their_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    image = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4)
    turned = (image.T, ClassTarget(mask[::-1].T))
    pixels, target = decode_once(lambda i: turned, 1, ClassTarget, "key", ())[0]
    assert pixels.tolist() == image.T.tolist()
    assert target.mask.tolist() == mask[::-1].T.tolist()
