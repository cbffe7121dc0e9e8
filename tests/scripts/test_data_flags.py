"""Flags of train.py that say which data are read, and how."""

import shlex
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from support.flag_runs import Trainer, config
from support.folders import write_folder
from support.in_process import parsed
from support.rasters import NORTH_UP, scene, write_raster

from data_utils.image_io.reader import read_image, read_mask
from data_utils.loading import loaders
from data_utils.loading.augmentation import STRENGTHS
from data_utils.loading.dataset import TrainingDataset
from data_utils.sources.hf_datasets import HFRows
from data_utils.sources.load import load_records
from data_utils.sources.streams.parquet import ParquetRows
from train_utils.dataset import load_dataset_info
from unet import UNet


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("flags"))


@pytest.mark.flags("--dataset", "--output-dir")
def test_a_data_set_is_trained_on_in_the_output_folder(run, tmp_path):
    other = write_folder(tmp_path / "other", 6, seed=5, size=(16, 24))
    result = run.fresh("--dataset", other, output=tmp_path / "out")
    assert "5 training and 1 validation image" in result.output
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()
    assert result.settings["flags"]["output_dir"] == str(tmp_path / "out")


@pytest.mark.flags("--dataset-config", "--train-split", "--val-split", "--val-fraction", "--val-group", "--fold")
@pytest.mark.flags("--val-blocks", "--mask-suffix", "--allow-unpaired", "--exclude", "--on-bad-sample", "--outside")
@pytest.mark.flags("--absent", "--swap", "--bands", "--label-column", "--ignore-index")
@pytest.mark.flags("--dims", "--spacing", "--normalization")
@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--dataset-config large", "large"),
        ("--train-split night", "night"),
        ("--val-split dusk", "dusk"),
        ("--val-fraction 0.3", 0.3),
        (r"--val-group 'cell_(\d)'", r"cell_(\d)"),
        ("--fold 1/3", "1/3"),
        ("--val-blocks", 0),
        ("--val-blocks 100", 100),
        ("--mask-suffix _b", "_b"),
        ("--allow-unpaired", True),
        ("--exclude list.txt", "list.txt"),
        ("--on-bad-sample skip", "skip"),
        ("--outside ignore", "ignore"),
        ("--absent not-there", "not-there"),
        ("--swap 1=2", "1=2"),
        ("--swap ''", ""),
        ("--mask-suffix ''", ""),
        ("--bands 3 1", ("3", "1")),
        ("--label-column kind", "kind"),
        ("--ignore-index 7", "7"),
        ("--dims 2", 2),
        ("--spacing 4 2 0.5", (4, 2, 0.5)),
        ("--normalization ct", "ct"),
    ],
)
def test_a_flag_is_a_setting_of_the_data(words, value):
    """What each setting does: tests/data_utils."""
    flag, *_ = words.split()
    name = flag.removeprefix("--").replace("-", "_")
    assert parsed(*shlex.split(words)) == replace(parsed(), **{name: value})


def write_parquet(folder: Path, data: Path) -> Path:
    """Two parquet files of the training images: columns first, second (reversed), third (masks), mask (reversed)."""
    from datasets import Dataset, Features
    from datasets import Image as Picture

    files = sorted((data / "train" / "images").glob("*.png"))
    masks = [file.parent.parent / "masks" / file.name for file in files]
    columns = {"first": files, "second": files[::-1], "third": masks, "mask": masks[::-1]}
    stored = {
        name: [{"bytes": file.read_bytes(), "path": file.name} for file in column] for name, column in columns.items()
    }
    rows = Dataset.from_dict(stored, Features(dict.fromkeys(columns, Picture())))
    for number in range(2):
        rows.shard(2, number).to_parquet(str(folder / f"train-{number}.parquet"))
    return folder


@pytest.fixture(scope="module")
def columns(run, tmp_path_factory) -> Path:
    """A data set with two columns of images and two of masks."""
    return write_parquet(tmp_path_factory.mktemp("columns"), run.data)


@pytest.mark.flags("--image-column", "--mask-column", "--streaming")
@pytest.mark.parametrize(
    ("streaming", "kind"), [([], HFRows), (["--streaming"], ParquetRows)], ids=["loaded", "streamed"]
)
def test_columns_are_chosen_by_their_names(run, columns, streaming, kind):
    splits = load_records(
        config("--dataset", columns, "--image-column", "second", "--mask-column", "third", *streaming)
    )
    records = [record for split in splits for record in split]
    whole = splits[0].rows
    first_image = np.asarray(Image.open(run.data / "train" / "images" / "cell_00.png"))
    last_mask = np.asarray(Image.open(run.data / "train" / "masks" / "cell_07.png"))
    assert isinstance(whole, kind)
    assert len(records) == 8
    # `second` holds the images in reverse, so the first image stands beside the last mask
    (record,) = [record for record in records if (read_image(record["image"]) == first_image).all()]
    assert (read_mask(record["target"], "") == last_mask).all()


@pytest.mark.flags("--cache")
def test_cache_decodes_images_once(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run.fresh("--cache").records[0] == run().records[0]
    assert len([*tmp_path.rglob("*.arrow")]) == 2  # a file for each split
    with mock.patch("data_utils.loading.dataset.decode_image", side_effect=AssertionError("decoded again")):
        assert run.fresh("--cache").values("train/loss") == run().values("train/loss")


@pytest.mark.flags("--draft")
def test_draft_decodes_jpegs_at_a_lower_size(run, tmp_path):
    assert run().config["preprocess"]["draft"] is False
    write_folder(tmp_path / "data", 4, seed=0, size=(64, 64))
    for file in (tmp_path / "data" / "images").iterdir():
        Image.open(file).save(file.with_suffix(".jpg"))
        file.unlink()
    half = ("--dataset", tmp_path / "data", "--scale", "0.5")
    whole, drafted = run.fresh(*half), run.fresh(*half, "--draft")
    assert whole.values("train/loss") != drafted.values("train/loss")
    assert drafted.config["preprocess"]["draft"] is True
    assert drafted.settings["flags"]["draft"] is True


@pytest.mark.flags("--check-data")
def test_check_data_ends_before_the_run(run, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": True})
    result = run.fresh("--check-data", output=tmp_path / "out")
    assert "no problems" in result.output
    assert "precision" not in result.output  # nothing is computed
    assert result.exit_code == 0
    assert not (tmp_path / "out").exists()
    write_folder(tmp_path / "data", 6, seed=0, size=(16, 24))
    (tmp_path / "data" / "masks" / "cell_02.png").write_bytes(b"no picture")
    result = run.fresh("--dataset", tmp_path / "data", "--check-data", output=tmp_path / "out")
    assert "cell_02.png" in result.output
    assert result.exit_code == 1


@pytest.mark.flags("--place", "--no-place")
def test_place_takes_masks_at_their_place_in_the_world_and_no_place_pixel_by_pixel(tmp_path):
    """Two rasters with five rows without data, whose masks begin a pixel further to the right."""
    for number in range(2):
        bands, mask = scene(number, channels=4)
        bands[:, :5] = 0
        write_raster(
            tmp_path / "images" / f"{number}.tif", bands.astype(np.uint8), photometric="RGB", ALPHA="NO", nodata=0
        )
        shifted = NORTH_UP @ NORTH_UP.translation(1, 0)
        write_raster(tmp_path / "masks" / f"{number}.tif", mask[None], transform=shifted)
    info = load_dataset_info(config("--dataset", tmp_path, "--place"))
    _, target = TrainingDataset(info.train, info, info.preprocess()).load(0)
    assert info.channels == 4
    assert info.preprocess().place
    assert (target.mask[:5] == 255).all()
    assert (target.mask[:, 0] == 255).all()
    info = load_dataset_info(config("--dataset", tmp_path, "--no-place"))
    pixels, target = TrainingDataset(info.train, info, info.preprocess()).load(0)
    image = np.array(Image.open(tmp_path / "images" / info.train.records.name(0)).convert("RGB"))
    assert info.channels == 3
    assert not info.preprocess().place
    assert np.array_equal(pixels, np.moveaxis(image, 2, 0))
    assert not (target.mask == 255).any()


@pytest.mark.flags("--classes")
def test_classes_have_the_names_that_they_are_given(run):
    assert run("--classes", "0=ground,255=car").config["preprocess"]["class_names"] == ["ground", "car"]


@pytest.mark.flags("--task")
def test_task_is_found_in_the_data_unless_it_is_given(run):
    result = run()
    assert parsed().task is None
    assert result.settings["flags"]["task"] == "classes"
    assert result.settings["identity"]["task"] == "classes"
    assert run("--task", "classes").values("train/loss") == result.values("train/loss")


@pytest.mark.flags("--regions")
def test_regions_are_a_task_that_is_learned(run):
    assert parsed("--regions", "box=255", "--task", "overlapping").task == "regions"
    result = run("--regions", "box=255")
    assert result.config["task"] == {"name": "regions", "regions": [["box", [255]]]}
    assert result.config["num_classes"] == 1


@pytest.mark.flags("--scale", "--image-size", "--crop-size")
@pytest.mark.parametrize(
    ("flags", "trained", "evaluated"),
    [
        ([], (16, 24), (16, 24)),
        (["--scale", "0.5"], (8, 12), (8, 12)),
        (["--image-size", "20", "8"], (20, 8), (20, 8)),
        (["--crop-size", "8", "12"], (8, 12), (16, 24)),
    ],
    ids=["none", "scale", "image size", "crop size"],
)
def test_sizes_are_those_that_the_network_sees(run, monkeypatch, flags, trained, evaluated):
    shapes = []
    forward = UNet.forward
    monkeypatch.setattr(UNet, "forward", lambda self, images: shapes.append(images.shape) or forward(self, images))
    run.fresh(*flags)
    assert {tuple(shape[2:]) for shape in shapes if shape[0] == 8} == {trained}
    assert {tuple(shape[2:]) for shape in shapes if shape[0] != 8} == {evaluated}


@pytest.mark.flags("--augment")
def test_augmentations_differ(run):
    losses = {tuple(run("--augment", strength).values("train/loss")) for strength in STRENGTHS}
    assert len(losses) == len(STRENGTHS)


@pytest.mark.flags("--seed")
def test_seed_chooses_augmentation(run):
    first, other = run("--augment", "strong"), run("--augment", "strong", "--seed", "1")
    assert other.values("train/loss") != first.values("train/loss")


@pytest.mark.flags("--seed")
def test_seed_chooses_all_weights(run):
    first, other = (result.weights(0)["stem.conv1.weight"] for result in (run(), run("--seed", "1")))
    assert (other != first).all()


@pytest.mark.flags("--num-workers")
def test_num_workers_load_for_both_splits(run, monkeypatch):
    calls = []
    loader = loaders.DataLoader
    monkeypatch.setattr(loaders, "DataLoader", lambda *a, **k: calls.append(k["num_workers"]) or loader(*a, **k))
    assert run.fresh("--num-workers", "1").settings["num_workers"] == 1
    assert calls == [1, 1]
