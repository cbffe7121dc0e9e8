"""Every flag of train.py does what it says: a flag without a check here fails, and so does one that is disconnected.

Modules: train_utils/settings/train_settings.py.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import write_folder
from encoders import write_encoder
from in_process import Run, parsed, run_train
from PIL import Image
from rasters import NORTH_UP, feature, scene, square, write_geojson, write_raster
from safetensors.torch import load_file
from volumes import case

import train
from data_utils.analysis.dataset_info import DatasetInfo, load_dataset_info
from data_utils.config import DataConfig
from data_utils.loading.augmentation import STRENGTHS
from data_utils.loading.samples import new_samples
from data_utils.sources.hf_datasets import HFRecords
from data_utils.sources.load import load_records
from data_utils.sources.streams.parquet import ParquetRecords
from data_utils.targets import TARGETS
from data_utils.targets.classes import ClassReader
from runtime.errors import DataError, SettingsError
from runtime.mesh import Mesh
from tasks import TASKS
from tasks.classes import Classes
from tasks.points import ABSENT, PRESENT, UNKNOWN
from train_utils.memory.preflight import Preflight
from train_utils.settings import flags as flags_of_train
from unet import UNet

# a whole epoch of 8 images in one step, nothing random, nothing scheduled: what a flag changes stands alone
PLAIN = ["--base-channels", "2", "--depth", "1", "--norm", "group", "--num-workers", "0", "--augment", "none"]
PLAIN += ["--plan", "none"]
PLAIN += ["--batch-size", "8", "--max-steps", "1", "--log-every", "1", "--schedule", "constant", "--warmup-steps", "0"]
PLAIN += ["--max-grad-norm", "0", "--optimizer", "sgd", "--learning-rate", "0.1", "--weight-decay", "0"]
PLAIN += ["--loss", "ce+dice", "--no-deep-supervision"]  # one level, a loss that the reference below computes
PLAIN += ["--tracker", "none", "--keep-checkpoints", "9", "--checkpoint-every", "1"]
SGD_FIRST_STEP = 1.9  # Nesterov momentum 0.9: the first step goes 1 + 0.9 times the gradient
FLOAT32 = 1e-5  # relative rounding of sums over a few thousand pixels


class Trainer:
    """Runs train.py in this process on a small folder; a run with the same flags is made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        write_folder(self.data / "train", 8, seed=0, size=(16, 24))
        write_folder(self.data / "val", 3, seed=1, size=(16, 24))
        self.runs: dict[tuple[str, ...], Run] = {}

    def __call__(self, *flags: str | Path) -> Run:
        key = tuple(map(str, flags))
        if key not in self.runs:
            self.runs[key] = self.fresh(*flags)
        return self.runs[key]

    def fresh(self, *flags: str | Path, output: Path | None = None) -> Run:
        """A run that is made anew."""
        output = output or self.folder / "runs" / str(len([*self.folder.glob("runs/*")]))
        with (
            mock.patch.object(train.Publisher, "write_results"),  # pictures and report, which no flag changes
            mock.patch.object(train, "training_flops", lambda *_: 1.0),
        ):
            return run_train(output, "--dataset", self.data, *PLAIN, *flags)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("flags"))


CHECKS: dict[str, Callable] = {}


def checks(*flags: str) -> Callable:
    """Register a check of some flags; it gets the `run` fixture, a folder of its own and monkeypatch."""

    def register(check: Callable) -> Callable:
        for flag in flags:
            assert flag not in CHECKS, f"{flag} is checked twice"
            CHECKS[flag] = check
        return check

    return register


def all_actions() -> list[argparse.Action]:
    """The flags as argparse has them."""
    actions: list[argparse.Action] = []

    def list_actions(parser: argparse.ArgumentParser, *_: object) -> argparse.Namespace:
        actions.extend(action for action in parser._actions if "--help" not in action.option_strings)
        raise SystemExit

    with mock.patch.object(flags_of_train.arg.Arguments, "parse_args", list_actions), pytest.raises(SystemExit):
        flags_of_train.parse_args("")
    return actions


def test_every_flag_has_a_check():
    assert sorted(CHECKS) == sorted(flag for action in all_actions() for flag in action.option_strings)


def test_every_flag_says_what_it_does_and_what_it_takes():
    actions = all_actions()
    assert [action.dest for action in actions if not action.help] == []
    unnamed = [action.dest for action in actions if action.nargs != 0 and not (action.metavar or action.choices)]
    assert unnamed == ["tracker", "seed"]  # which say it themselves


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each check, named for its flags."""
    if "check" in metafunc.fixturenames:
        flags_of = {check: [flag for flag in CHECKS if CHECKS[flag] is check] for check in CHECKS.values()}
        metafunc.parametrize("check", flags_of, ids=[" ".join(flags) for flags in flags_of.values()])


def test_a_flag_does_what_it_says(check, run, tmp_path, monkeypatch):
    check(run, tmp_path, monkeypatch)


def config(*flags: str | Path) -> DataConfig:
    """The data settings of these flags."""
    return DataConfig.from_args(parsed(*flags))


def moved(run: Run, step: int = 1) -> torch.Tensor:
    """How far each weight went in a step."""
    before, after = run.weights(step - 1), run.weights(step)
    return torch.cat([(after[name] - before[name]).flatten() for name in before])


def first_batch(run: Run, data: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (8, 2, H, W) of the training images from the weights that the run began with, and their masks."""
    model = UNet.from_pretrained(run.folder / "model")
    model.load_state_dict(run.weights(0))
    files = sorted((data / "train" / "images").glob("*.png"))
    images = torch.tensor(np.stack([np.asarray(Image.open(file)) for file in files])).permute(0, 3, 1, 2)
    masks = [np.asarray(Image.open(file.parent.parent / "masks" / file.name)) // 255 for file in files]
    with torch.no_grad():
        return model(images).double(), torch.tensor(np.stack(masks)).long()


def soft_dice(logits: torch.Tensor, masks: torch.Tensor) -> float:
    """One minus Dice of each image and class, averaged; every class is in every image here."""
    probs, truth = logits.softmax(dim=1), F.one_hot(masks, 2).permute(0, 3, 1, 2).double()
    dice = 2 * (probs * truth).sum(dim=(2, 3)) / (probs.sum(dim=(2, 3)) + truth.sum(dim=(2, 3)))
    return (1 - dice).mean().item()


def log_dice(logits: torch.Tensor, masks: torch.Tensor) -> float:
    """As `soft_dice`, of -log Dice smoothed by a thousandth of a pixel."""
    probs, truth = logits.softmax(dim=1), F.one_hot(masks, 2).permute(0, 3, 1, 2).double()
    overlap, sizes = (probs * truth).sum(dim=(2, 3)), probs.sum(dim=(2, 3)) + truth.sum(dim=(2, 3))
    return -((2 * overlap + 1e-3) / (sizes + 1e-3)).log().mean().item()


# data


@checks("--dataset", "--output-dir")
def check_dataset(run, folder, monkeypatch):
    other = write_folder(folder / "other", 6, seed=5, size=(16, 24))
    result = run.fresh("--dataset", other, output=folder / "out")
    assert "5 training and 1 validation images" in result.output
    assert (folder / "out" / "model" / "model.safetensors").is_file()
    assert result.settings["flags"]["output_dir"] == str(folder / "out")


@checks("--dataset-config")
def check_dataset_config(run, folder, monkeypatch):
    import datasets

    calls = []
    monkeypatch.setattr("data_utils.sources.hf_datasets.ask_hub", lambda *_: None)
    monkeypatch.setattr(datasets, "load_dataset", lambda *given: calls.append(given) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load_records(config("--dataset", "owner/name", "--dataset-config", "large"))
    assert calls == [("owner/name", "large")]


@checks("--train-split", "--val-split")
def check_splits(run, folder, monkeypatch):
    for count, split in enumerate(("train", "val", "night", "dusk"), start=3):
        write_folder(folder / split, count, seed=count, size=(16, 24))
    train_split, val_split = load_records(config("--dataset", folder, "--train-split", "night", "--val-split", "dusk"))
    assert (len(train_split), len(val_split)) == (5, 6)
    assert [*map(len, load_records(config("--dataset", folder)))] == [3, 4]


@checks("--val-fraction", "--val-group")
def check_held_out(run, folder, monkeypatch):
    write_folder(folder, 20, seed=0, size=(16, 24))
    assert [*map(len, load_records(config("--dataset", folder)))] == [18, 2]
    assert [*map(len, load_records(config("--dataset", folder, "--val-fraction", "0.3")))] == [14, 6]
    grouped = load_records(config("--dataset", folder, "--val-group", r"cell_(\d)", "--val-fraction", "0.3"))
    names = [{record["name"][:6] for record in records} for records in grouped]
    assert names[0] & names[1] == set()
    assert names[0] | names[1] == {"cell_0", "cell_1"}


@checks("--fold")
def check_fold(run, folder, monkeypatch):
    write_folder(folder, 20, seed=0, size=(16, 24))
    folds = [load_records(config("--dataset", folder, "--fold", f"{k}/3")) for k in (1, 2, 3)]
    held_out = [{record["name"] for record in val} for _, val in folds]
    assert sorted(map(len, held_out)) == [6, 7, 7]
    assert len(set.union(*held_out)) == 20
    assert all(held_out[k].isdisjoint(record["name"] for record in train) for k, (train, _) in enumerate(folds))
    with pytest.raises(DataError, match=r"--fold 1/3 cuts the training images into folds, but .* has the validation"):
        load_records(config("--dataset", run.data, "--fold", "1/3"))


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


@checks("--image-column", "--mask-column", "--streaming")
def check_columns_and_streaming(run, folder, monkeypatch):
    from data_utils.image_io.reader import read_image, read_mask

    write_parquet(folder, run.data)
    columns = ("--dataset", folder, "--image-column", "second", "--mask-column", "third")
    for streaming, kind in (((), HFRecords), (("--streaming",), ParquetRecords)):
        splits = load_records(config(*columns, *streaming))
        records = [record for split in splits for record in split]
        whole = splits[0].records if hasattr(splits[0], "records") else splits[0]
        assert isinstance(whole, kind)
        assert len(records) == 8
        first, last = (run.data / "train" / kind for kind in ("images/cell_00.png", "masks/cell_07.png"))
        # `second` holds the images in reverse, so the first image stands beside the last mask
        same_images = [
            record for record in records if (read_image(record["image"]) == np.asarray(Image.open(first))).all()
        ]
        assert len(same_images) == 1
        assert (read_mask(same_images[0]["target"], "") == np.asarray(Image.open(last))).all()
    with pytest.raises(DataError, match="--image-column"):
        load_records(config("--dataset", folder))


@checks("--mask-suffix", "--allow-unpaired")
def check_mask_suffix(run, folder, monkeypatch):
    write_folder(folder, 4, seed=0, size=(16, 24))
    for file in [*(folder / "masks").iterdir()]:
        for kind in ("a", "b"):
            Image.open(file).save(file.with_name(f"{file.stem}_{kind}.png"))
        file.unlink()
    flags = ("--dataset", folder, "--mask-suffix", "_b")
    with pytest.raises(DataError, match="4 of 8 masks"):
        load_records(config(*flags))
    records = [record for split in load_records(config(*flags, "--allow-unpaired")) for record in split]
    assert {str(record["target"])[-6:] for record in records} == {"_b.png"}


@checks("--exclude")
def check_exclude(run, folder, monkeypatch):
    (folder / "list.txt").write_text("cell_01.png\n")  # in both splits
    flags = ("--dataset", run.data, "--exclude", folder / "list.txt")
    assert [len(split) for split in load_records(config(*flags))] == [7, 2]


@checks("--cache")
def check_cache(run, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    assert run.fresh("--cache").records[0] == run().records[0]
    assert len([*folder.rglob("*.arrow")]) == 2  # a file for each split
    with mock.patch("data_utils.loading.samples.decode_image", side_effect=AssertionError("decoded again")):
        assert run.fresh("--cache").values("train/loss") == run().values("train/loss")


@checks("--draft")
def check_draft(run, folder, monkeypatch):
    assert run().config["preprocess"]["draft"] is False
    write_folder(folder / "data", 4, seed=0, size=(64, 64))
    for file in (folder / "data" / "images").iterdir():
        Image.open(file).save(file.with_suffix(".jpg"))
        file.unlink()
    half = ("--dataset", folder / "data", "--scale", "0.5")
    whole, drafted = run.fresh(*half), run.fresh(*half, "--draft")
    assert whole.values("train/loss") != drafted.values("train/loss")
    assert drafted.config["preprocess"]["draft"] is True
    assert drafted.settings["flags"]["draft"] is True


@checks("--check-data")
def check_check_data(run, folder, monkeypatch):
    result = run.fresh("--check-data", output=folder / "out")
    assert "no problems" in result.output
    assert result.exit_code == 0
    assert not (folder / "out").exists()


@checks("--on-bad-sample")
def check_on_bad_sample(run, folder, monkeypatch):
    write_folder(folder, 6, seed=0, size=(16, 24))
    (folder / "masks" / "cell_02.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"cell_02\.png"):
        load_dataset_info(config("--dataset", folder))
    info = load_dataset_info(config("--dataset", folder, "--on-bad-sample", "skip"))
    assert len(info.train.bad) + len(info.val.bad) == 1


@checks("--outside")
def check_outside(run, folder, monkeypatch):
    other_maps = {}
    for outside in ("ignore", "background"):
        flags = ("--dataset", run.data, "--classes", "0=background,7=cell", "--outside", outside)
        other_maps[outside] = load_dataset_info(config(*flags)).reader.class_map.outside
    assert other_maps == {"ignore": 255, "background": 0}


@checks("--absent", "--swap")
def check_absent_and_swap(run, folder, monkeypatch):
    (folder / "images").mkdir(parents=True)
    for name in ("a.png", "b.png"):
        Image.new("L", (24, 16)).save(folder / "images" / name)
    (folder / "points.csv").write_text("image,X1,Y1,X2,Y2\na.png,1,2,3,4\nb.png,,,5,6\n")
    records, _ = load_records(config("--dataset", folder))
    assert records.metadata.task == "landmarks"
    absences = {}
    for absent in ("unknown", "not-there"):
        splits = load_records(config("--dataset", folder, "--absent", absent))
        absences[absent] = sorted(int(part[0]["target"].states[0]) for part in splits)
    assert absences == {"unknown": [UNKNOWN, PRESENT], "not-there": [ABSENT, PRESENT]}
    reader = load_dataset_info(config("--dataset", folder)).reader
    assert reader.landmarks.partners == (0, 1)
    assert not reader.mirrors
    reader = load_dataset_info(config("--dataset", folder, "--swap", "1=2")).reader
    assert reader.landmarks.partners == (1, 0)
    assert reader.mirrors


@checks("--bands")
def check_bands(run, folder, monkeypatch):
    for number in range(2):
        bands, mask = scene(number)
        write_raster(folder / "images" / f"{number}.tif", bands)
        write_raster(folder / "masks" / f"{number}.tif", mask[None])
    info = load_dataset_info(config("--dataset", folder, "--bands", "3", "1"))
    whole = load_dataset_info(config("--dataset", folder))
    assert info.normalization.mean == (whole.normalization.mean[2], whole.normalization.mean[0])
    assert info.preprocess().bands == ("3", "1")


@checks("--place", "--no-place")
def check_place(run, folder, monkeypatch):
    for number in range(2):
        bands, mask = scene(number, channels=4)
        bands[:, :5] = 0
        write_raster(
            folder / "images" / f"{number}.tif", bands.astype(np.uint8), photometric="RGB", ALPHA="NO", nodata=0
        )
        shifted = NORTH_UP @ NORTH_UP.translation(1, 0)
        write_raster(folder / "masks" / f"{number}.tif", mask[None], transform=shifted)
    new, old = (load_dataset_info(config("--dataset", folder, flag)) for flag in ("--place", "--no-place"))
    assert (new.channels, old.channels) == (4, 3)
    assert new.preprocess().place
    assert not old.preprocess().place
    image = np.array(Image.open(folder / "images" / old.train.records.name(0)).convert("RGB"))
    pixels, target = new_samples(old.train, old, old.preprocess(), fit_targets=True).load(0)
    assert np.array_equal(pixels, np.moveaxis(image, 2, 0))
    assert not (target.mask == 255).any()
    _, target = new_samples(new.train, new, new.preprocess(), fit_targets=True).load(0)
    assert (target.mask[:5] == 255).all()
    assert (target.mask[:, 0] == 255).all()


@checks("--val-blocks")
def check_blocks(run, folder, monkeypatch):
    bands, mask = scene(0, size=(200, 260))
    write_raster(folder / "images" / "0.tif", bands)
    write_raster(folder / "masks" / "0.tif", mask[None])
    assert [*map(len, load_records(config("--dataset", folder, "--val-blocks")))] == [11, 1]
    assert [*map(len, load_records(config("--dataset", folder, "--val-blocks", "100")))] == [5, 1]
    with pytest.raises(DataError, match=r"--val-blocks holds out .* has the validation split"):
        load_records(config("--dataset", run.data, "--val-blocks"))


@checks("--label-column")
def check_label_column(run, folder, monkeypatch):
    features = []
    for number, label in enumerate(("field", "wood")):
        bands, _ = scene(number)
        write_raster(folder / "images" / f"{number}.tif", bands)
        features.append(feature(square(10 * number, 0, 8), kind=label))
    write_geojson(folder / "areas.geojson", features)
    assert load_records(config("--dataset", folder, "--label-column", "kind"))[0].metadata.classes == (
        (0, "background"),
        (1, "field"),
        (2, "wood"),
    )
    assert load_records(config("--dataset", folder))[0].metadata.classes == ((0, "background"), (1, "polygon"))


@checks("--classes", "--ignore-index")
def check_classes(run, folder, monkeypatch):
    assert run("--classes", "0=ground,255=car").config["preprocess"]["class_names"] == ["ground", "car"]
    write_folder(folder, 4, seed=0, size=(16, 24))
    for file in (folder / "masks").iterdir():
        mask = np.array(Image.open(file))
        mask[0] = 7
        Image.fromarray(mask).save(file)
    info = load_dataset_info(config("--dataset", folder, "--ignore-index", "7"))
    assert info.reader.class_map.values == (0, 255)
    assert info.reader.class_map.ignore_value == 7
    assert load_dataset_info(config("--dataset", folder)).reader.class_map.values == (0, 7, 255)


@checks("--task")
def check_task(run, folder, monkeypatch):
    result = run()
    assert parsed().task is None
    assert result.settings["flags"]["task"] == result.settings["identity"]["task"] == "classes"
    assert run("--task", "classes").values("train/loss") == result.values("train/loss")
    refused = run_train(folder / "out", "--dataset", run.data, "--task", "boxes")
    errors = [line for line in refused.output.splitlines() if "error: " in line]
    assert refused.exit_code == 2
    assert len(errors) == 1
    assert "argument --task: invalid choice: 'boxes'" in errors[0]
    assert not (folder / "out").exists()

    class OtherReader(ClassReader):
        """Of another task."""

    monkeypatch.setitem(TASKS, "other", Classes)
    monkeypatch.setitem(TARGETS, "other", OtherReader)
    readers = [load_dataset_info(config("--dataset", run.data, "--task", name)).reader for name in ("classes", "other")]
    assert [*map(type, readers)] == [ClassReader, OtherReader]


@checks("--regions")
def check_regions(run, folder, _):
    assert (
        parsed("--regions", "box=255", "--task", "overlapping").task == parsed("--regions", "box=255").task == "regions"
    )
    learned = run("--regions", "box=255")
    assert learned.config["task"] == {"name": "regions", "regions": [["box", [255]]]}
    assert learned.config["num_classes"] == 1
    refused = run_train(folder / "out", "--dataset", run.data, "--regions", "box=255", "--task", "classes")
    assert refused.exit_code == 2
    assert "--regions is for --task regions, and --task is classes" in refused.output


@checks("--dims", "--spacing", "--normalization")
def check_volumes(run, tmp_path, monkeypatch):
    for kind, voxels in zip(("images", "masks"), case(0, (6, 8, 10)), strict=True):
        (tmp_path / kind).mkdir()
        for name in "ab":
            np.save(tmp_path / kind / f"{name}.npy", voxels)

    def info(*flags: str) -> DatasetInfo:
        return load_dataset_info(config("--dataset", tmp_path, *flags))

    spaced = info("--dims", "3", "--spacing", "4", "2", "1")
    assert spaced.train.sizes.tolist() == [[6, 8, 10]]
    assert spaced.preprocess().spacing == (4, 2, 1)
    assert spaced.preprocess().standardize
    assert info("--spacing", "4", "2", "1", "--normalization", "ct").preprocess().clip is not None
    assert info("--spacing", "4", "2", "1", "--dims", "2").train.sizes.tolist() == [[8, 10]] * 6


@checks("--scale", "--image-size", "--crop-size")
def check_sizes(run, folder, monkeypatch):
    shapes = []
    forward = UNet.forward
    monkeypatch.setattr(UNet, "forward", lambda self, images: shapes.append(images.shape) or forward(self, images))

    def seen(*flags: str) -> tuple[set, set]:
        """(H, W) in training and in evaluation."""
        shapes.clear()
        with mock.patch.object(Preflight, "fit_batch_split", lambda self, shape, batch_split: batch_split):
            run.fresh(*flags)
        return {tuple(s[2:]) for s in shapes if s[0] == 8}, {tuple(s[2:]) for s in shapes if s[0] != 8}

    assert seen() == ({(16, 24)}, {(16, 24)})
    assert seen("--scale", "0.5") == ({(8, 12)}, {(8, 12)})
    assert seen("--image-size", "20", "8") == ({(20, 8)}, {(20, 8)})
    assert seen("--crop-size", "8", "12") == ({(8, 12)}, {(16, 24)})


@checks("--augment", "--seed")
def check_randomness(run, folder, monkeypatch):
    losses = [run("--augment", strength).values("train/loss") for strength in STRENGTHS]
    assert len(set(map(tuple, losses))) == len(STRENGTHS)
    other = run("--augment", "strong", "--seed", "1")
    assert other.values("train/loss") != losses[-1]
    assert (other.weights(0)["stem.conv1.weight"] != run().weights(0)["stem.conv1.weight"]).all()
    # the order of the images belongs to the seed too: with other weights and augmentation apart
    order = [[slot.index for batch in train_batches(seed) for slot in batch] for seed in (0, 0, 1)]
    assert order[0] == order[1] != order[2]
    assert sorted(order[0]) == sorted(order[2])


def train_batches(seed: int) -> list:
    from data_utils.loading.batch_sampler import BatchSplit, TrainingSampler

    return [*TrainingSampler(np.full((8, 2), 16), BatchSplit(2, 1, 2, 1), seed, range(4))]


@checks("--num-workers")
def check_num_workers(run, folder, monkeypatch):
    from data_utils.loading import loaders

    calls = []
    loader = loaders.DataLoader
    monkeypatch.setattr(loaders, "DataLoader", lambda *a, **k: calls.append(k["num_workers"]) or loader(*a, **k))
    assert run.fresh("--num-workers", "1").settings["num_workers"] == 1
    assert calls == [1, 1]


# model


@checks("--init-from")
def check_init_from(run, folder, monkeypatch):
    source = run("--seed", "3")
    begun = run("--init-from", source.folder / "model").weights(0)
    assert all(torch.equal(begun[name], weight) for name, weight in source.model.items())
    assert any(not torch.equal(run().weights(0)[name], weight) for name, weight in source.model.items())


@checks("--encoder", "--encoder-weights", "--freeze-encoder", "--no-freeze-encoder", "--encoder-lr-factor")
def check_encoder(run, folder, monkeypatch):
    encoder = write_encoder(folder / "tiny-resnet")

    def far(found: Run) -> dict[str, float]:
        """How far the first filters of encoder and decoder went in the first step."""
        names = {"encoder": "encoder.backbone.embedder.embedder.convolution.weight", "decoder": "stem.conv1.weight"}
        before, after = found.weights(0), found.weights(1)
        return {part: (after[name] - before[name]).norm().item() for part, name in names.items()}

    flags = ("--encoder", encoder, "--depth", "5")
    found, whole = run.fresh(*flags), run.fresh(*flags, "--encoder-lr-factor", "1")
    frozen, random = run.fresh(*flags, "--freeze-encoder"), run.fresh(*flags, "--encoder-weights", "random")
    assert parsed("--freeze-encoder").freeze_encoder
    assert parsed("--no-freeze-encoder").freeze_encoder is False
    theirs = load_file(encoder / "model.safetensors")
    name = "embedder.embedder.convolution.weight"
    assert torch.equal(found.weights(0)[f"encoder.backbone.{name}"], theirs[name])
    assert not torch.equal(random.weights(0)[f"encoder.backbone.{name}"], theirs[name])
    assert far(found)["encoder"] == pytest.approx(0.1 * far(whole)["encoder"], rel=FLOAT32)  # the default
    assert far(found)["decoder"] == pytest.approx(far(whole)["decoder"], rel=FLOAT32)
    assert far(whole)["decoder"] > 0
    assert far(frozen)["encoder"] == 0
    assert far(frozen)["decoder"] > 0
    plain = run.fresh("--encoder", "none")
    assert plain.config["encoder"] is None
    assert plain.values("train/loss") == run().values("train/loss")


@checks("--base-channels", "--depth", "--norm", "--block", "--upsample")
def check_architecture(run, folder, monkeypatch):
    result = run(
        "--base-channels", "3", "--depth", "2", "--norm", "instance", "--upsample", "bilinear", "--block", "residual"
    )
    assert [result.config[name] for name in ("base_channels", "depth", "norm", "upsample")] == [
        3,
        2,
        "instance",
        "bilinear",
    ]
    assert result.model["stem.conv1.weight"].shape[0] == 3
    assert result.model["downs.1.conv.conv1.weight"].shape[0] == 6  # as wide as the level above: nothing halves it
    assert not any("up.weight" in name for name in result.model)  # what a transposed convolution has


@checks("--dropout")
def check_dropout(run, folder, monkeypatch):
    result = run("--dropout", "0.5")
    assert result.config["dropout"] == 0.5
    assert result.values("train/loss") != run().values("train/loss")
    assert run.fresh("--dropout", "0.5").values("train/loss") == result.values("train/loss")


@checks("--activation-checkpointing")
def check_activation_checkpointing(run, folder, monkeypatch):
    from unet import recompute

    calls = []
    checkpoint = recompute.checkpoint
    monkeypatch.setattr(recompute, "checkpoint", lambda *a, **k: calls.append(a) or checkpoint(*a, **k))
    plain, again = run.fresh(), len(calls)
    result = run.fresh("--activation-checkpointing")
    assert again == 0
    assert len(calls) == 3
    assert result.values("train/loss") == plain.values("train/loss")


@checks("--sync-batchnorm")
def check_sync_batchnorm(run, folder, monkeypatch):
    # on several processes: test_sync_batchnorm.py
    calls = []
    monkeypatch.setattr(train, "synchronize_batchnorm", lambda a, model, how, split: calls.append(how) or model)
    run.fresh("--sync-batchnorm", "off")
    assert calls == ["off"]
    assert parsed().sync_batchnorm == "auto"


# optimization


@checks("--max-minutes", "--like")
def check_length_and_record(run, folder, monkeypatch):
    monkeypatch.setattr("train_utils.monitoring.rehearsal.steps_that_fit", lambda *_: 2)
    monkeypatch.setattr("train_utils.monitoring.rehearsal.MOST_STEPS", 0)
    flags = PLAIN[: PLAIN.index("--max-steps")] + PLAIN[PLAIN.index("--max-steps") + 2 :]
    measured = run_train(folder / "run", "--dataset", run.data, *flags, "--max-minutes", "9")
    assert measured.steps("train/loss") == [1, 2]
    assert measured.settings["flags"]["max_minutes"] == 9
    args = parsed("--like", folder / "run" / "run.json", "--seed", "5")
    assert (args.max_steps, args.max_minutes, args.batch_size, args.seed) == (2, None, 8, 5)


@checks("--batch-size", "--epochs", "--max-steps")
def check_length(run, folder, monkeypatch):
    assert run("--batch-size", "4").values("epoch")[0] == 0.5
    result = run.fresh("--max-steps", "3", "--epochs", "2")
    assert result.steps("train/loss") == [1, 2, 3]  # --max-steps stands instead of --epochs
    flags = PLAIN[: PLAIN.index("--max-steps")] + PLAIN[PLAIN.index("--max-steps") + 2 :]
    result = run_train(folder / "out", "--dataset", run.data, *flags, "--epochs", "2", "--batch-size", "4")
    assert result.steps("train/loss") == [1, 2, 3, 4]


@checks("--micro-batch-size")
def check_micro_batches(run, folder, monkeypatch):
    plain = run()
    sizes = []
    forward = UNet.forward
    monkeypatch.setattr(UNet, "forward", lambda self, images: sizes.append(len(images)) or forward(self, images))
    with mock.patch.object(Preflight, "fit_batch_split", lambda self, shape, batch_split: batch_split):
        result = run.fresh("--micro-batch-size", "3")
    assert sizes == [3, 3, 2, 3]  # the step's images, and the validation images
    assert (result.settings["micro_batch_size"], result.settings["accumulation"]) == (3, 3)
    assert result.values("train/loss") == pytest.approx(plain.values("train/loss"), rel=FLOAT32)
    assert result.values("train/grad_norm") == pytest.approx(plain.values("train/grad_norm"), rel=FLOAT32)


@checks("--patience")
def check_patience(run, folder, monkeypatch):
    still = ("--learning-rate", "1e-12", "--max-steps", "6", "--eval-every", "1")
    assert run(*still).steps("eval/loss") == [1, 2, 3, 4, 5, 6]
    result = run(*still, "--patience", "2")
    assert result.steps("eval/loss") == [1, 2, 3]
    assert "no better mean IoU in 2 evaluations, stopping at step 3" in result.output


@checks("--optimizer", "--learning-rate")
def check_optimizer(run, folder, monkeypatch):
    for rate in ("0.1", "0.02"):
        sgd = run("--learning-rate", rate)
        assert sgd.values("train/lr") == [float(rate)]
        expected = SGD_FIRST_STEP * float(rate) * sgd.values("train/grad_norm")[0]
        assert moved(sgd).norm().item() == pytest.approx(expected, rel=1e-4)  # differences of float32 weights
    adamw = moved(run("--optimizer", "adamw", "--learning-rate", "0.001")).abs()
    assert adamw.max().item() == pytest.approx(0.001, rel=1e-3)  # each by the learning rate, whatever its gradient
    assert (adamw > 0.00099).float().mean() > 0.9


@checks("--weight-decay")
def check_weight_decay(run, folder, monkeypatch):
    rate, decay = 0.001, 0.5
    flags = ("--optimizer", "adamw", "--learning-rate", str(rate))
    without, decayed = run(*flags), run(*flags, "--weight-decay", str(decay))
    for name, before in without.weights(0).items():
        lost = without.weights(1)[name] - decayed.weights(1)[name]
        expected = rate * decay * before if before.ndim > 1 else torch.zeros_like(before)
        assert torch.allclose(lost, expected, rtol=0, atol=2e-7), name  # a few units in float32's last place


@checks("--schedule", "--warmup-steps")
def check_schedule(run, folder, monkeypatch):
    length = ("--max-steps", "8", "--warmup-steps", "2", "--eval-every", "8", "--checkpoint-every", "8")
    rates = {kind: run(*length, "--schedule", kind).values("train/lr") for kind in ("cosine", "poly", "constant")}
    progress = [(step - 2) / 6 for step in range(2, 8)]
    assert rates["cosine"] == pytest.approx([0.05, 0.1, *(0.05 * (1 + math.cos(math.pi * part)) for part in progress)])
    assert rates["poly"] == pytest.approx([0.05, 0.1, *(0.1 * (1 - part) ** 0.9 for part in progress)])
    assert rates["constant"] == pytest.approx([0.05] + [0.1] * 7)


@checks("--max-grad-norm")
def check_max_grad_norm(run, folder, monkeypatch):
    norm = run().values("train/grad_norm")[0]
    result = run("--max-grad-norm", "0.01")
    assert norm > 0.02
    assert result.values("train/grad_norm") == [norm]
    assert moved(result).norm().item() == pytest.approx(SGD_FIRST_STEP * 0.1 * 0.01, rel=1e-3)


@checks("--ema-decay")
def check_ema_decay(run, folder, monkeypatch):
    result = run("--ema-decay", "0.2", "--max-steps", "2", "--eval-every", "2")
    for name, average in result.weights(0).items():
        for step in (1, 2):
            decay = min(0.2, (1 + step) / (10 + step))  # 2/11 of the first step is smaller, 3/12 of the second larger
            average = decay * average + (1 - decay) * result.weights(step)[name]
        assert torch.allclose(result.model[name], average, rtol=0, atol=1e-6), name
        assert name != "stem.conv1.weight" or not torch.allclose(result.model[name], result.weights(2)[name], atol=1e-4)


@checks("--ddp-comm-hook")
def check_comm_hook(run, folder, monkeypatch):
    calls = []
    monkeypatch.setattr(train, "distributed_options", lambda hook: calls.append(hook) or [])
    run.fresh("--ddp-comm-hook", "fp16")
    assert calls == ["fp16"]


@checks("--processes-per-volume")
def check_processes_per_volume(run, folder, monkeypatch):
    sizes = []
    from_process = Mesh.from_process
    monkeypatch.setattr(Mesh, "from_process", lambda *place: sizes.append(place[2]) or from_process(*place[:2], size=1))
    run.fresh("--processes-per-volume", "1")
    assert sizes == [1]
    assert parsed("--processes-per-volume", "4").processes_per_volume == 4


@checks("--deep-supervision", "--no-deep-supervision")
def check_deep_supervision(run, folder, monkeypatch):
    plain, deep = run("--depth", "4"), run("--depth", "4", "--deep-supervision")
    assert plain.model.keys() == deep.model.keys()
    assert sorted(deep.weights(1).keys() - plain.weights(1).keys()) == [
        f"heads.{level}.conv.{kind}" for level in (0, 1) for kind in ("bias", "weight")
    ]
    assert parsed().deep_supervision
    assert not parsed("--no-deep-supervision").deep_supervision


@checks("--plan")
def check_plan(run, folder, monkeypatch):
    assert "plan: " not in run().output
    assert "plan: --scale 1" in run.fresh("--plan", "auto").output


@checks("--loss", "--class-weights")
def check_loss(run, folder, monkeypatch):
    logits, masks = first_batch(run(), run.data)
    each = F.cross_entropy(logits, masks, reduction="none")
    focal = ((1 - torch.exp(-each)) ** 2 * each).mean().item()
    dice = soft_dice(logits, masks)
    expected = {
        "ce": each.mean().item(),
        "dice": dice,
        "ce+dice": each.mean().item() + dice,
        "ce+logdice": each.mean().item() + log_dice(logits, masks),
        "focal+dice": focal + dice,
    }
    for kind, value in expected.items():
        assert run("--loss", kind).values("train/loss") == pytest.approx([value], rel=FLOAT32), kind
    weighted = F.cross_entropy(logits, masks, torch.tensor([1.0, 3.0], dtype=torch.float64)).item()
    assert run("--loss", "ce", "--class-weights", "1", "3").values("train/loss") == pytest.approx(
        [weighted], rel=FLOAT32
    )
    pixels = torch.bincount(masks.flatten(), minlength=2).double() + val_pixels(run.data)
    balanced = F.cross_entropy(logits, masks, (pixels.sum() / (2 * pixels)).sqrt()).item()
    assert run("--loss", "ce", "--class-weights", "auto").values("train/loss") == pytest.approx([balanced], rel=FLOAT32)


def val_pixels(data: Path) -> torch.Tensor:
    masks = [np.asarray(Image.open(file)) // 255 for file in (data / "val" / "masks").iterdir()]
    return torch.bincount(torch.tensor(np.stack(masks)).flatten().long(), minlength=2).double()


# run


@checks("--resume", "--checkpoint-every", "--keep-checkpoints")
def check_checkpoints(run, folder, monkeypatch):
    rebuilt = []  # what only several processes show: the order of sums after the first step
    monkeypatch.setattr(train, "rebuild_buckets", lambda model, network: rebuilt.append(network is model))
    whole = run.fresh("--max-steps", "4", "--eval-every", "4")
    assert whole.checkpoints() == [0, 1, 2, 3, 4]
    assert rebuilt == []
    result = run.fresh("--max-steps", "4", "--eval-every", "4", "--checkpoint-every", "2", "--keep-checkpoints", "2")
    assert result.checkpoints() == [2, 4]
    begun = run.fresh("--max-steps", "2", "--eval-every", "4", output=folder / "out")
    with pytest.raises(SettingsError, match="not an empty folder"):
        run.fresh(output=folder / "out")
    outcome = run.fresh("--max-steps", "4", "--eval-every", "4", "--resume", "auto", output=folder / "out")
    assert begun.checkpoints()[-1] == 4
    assert outcome.steps("train/loss") == [1, 2, 3, 4]
    assert rebuilt == [True]
    assert all(torch.equal(outcome.weights(4)[name], weight) for name, weight in whole.weights(4).items())


@checks("--eval-every", "--log-every")
def check_rhythm(run, folder, monkeypatch):
    result = run("--max-steps", "5", "--eval-every", "2", "--log-every", "3")
    assert result.steps("eval/loss") == [2, 4, 5]
    assert result.steps("train/loss") == [3, 5]
    each = run("--max-steps", "5", "--eval-every", "5").values("train/loss")
    means = [sum(each[:3]) / 3, sum(each[3:]) / 2]  # of the steps since the last record
    assert result.values("train/loss") == pytest.approx(means, rel=1e-6)


@checks("--trace-steps")
def check_trace_steps(run, folder, monkeypatch):
    result = run.fresh("--trace-steps", "1", "--max-steps", "5", "--eval-every", "5")
    events = json.loads((result.folder / "traces" / "process-0.json").read_text())["traceEvents"]
    assert any("conv" in event.get("name", "") for event in events)
    assert not (run().folder / "traces").exists()


@checks("--push-to-hub")
def check_push_to_hub(run, folder, monkeypatch):
    pushed = []
    monkeypatch.setattr("train_utils.reporting.hub.huggingface_hub.get_token", lambda: "token")
    monkeypatch.setattr("train_utils.results.push_to_hub", lambda *given: pushed.append(given))
    result = run.fresh("--push-to-hub", "me/cells")
    assert pushed == [(result.folder / "model", "me/cells")]


@checks("--tracker")
def check_tracker(run, folder, monkeypatch):
    assert not (run().folder / "tensorboard").exists()
    result = run.fresh("--tracker", "tensorboard")
    assert [*(result.folder / "tensorboard").glob("events.out.tfevents*")]
    with pytest.raises(SettingsError, match="--tracker nothing is unknown"):
        run.fresh("--tracker", "nothing")


@checks("--deterministic")
def check_deterministic(run, folder, monkeypatch):
    calls = []
    step = train.train_step
    monkeypatch.setattr(
        train, "train_step", lambda *a, **k: calls.append(torch.are_deterministic_algorithms_enabled()) or step(*a, **k)
    )
    run.fresh()
    run.fresh("--deterministic")
    assert calls == [False, True]
