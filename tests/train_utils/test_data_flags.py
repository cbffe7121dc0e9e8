"""Flags of train.py that say which data are read, and how."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from conftest import write_folder
from flag_runs import Trainer, config
from in_process import parsed, run_train
from PIL import Image
from rasters import NORTH_UP, feature, scene, square, write_geojson, write_raster
from volumes import case

from data_utils.analysis.dataset_info import DatasetInfo, load_dataset_info
from data_utils.loading.augmentation import STRENGTHS
from data_utils.loading.samples import new_samples
from data_utils.sources.hf_datasets import HFRecords
from data_utils.sources.load import load_records
from data_utils.sources.streams.parquet import ParquetRecords
from data_utils.targets import TARGETS
from data_utils.targets.classes import ClassReader
from runtime.errors import DataError
from tasks import TASKS
from tasks.classes import Classes
from tasks.points import ABSENT, PRESENT, UNKNOWN
from train_utils.memory.preflight import Preflight
from unet import UNet


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("flags"))


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


@pytest.mark.flags("--dataset", "--output-dir")
def test_a_data_set_is_trained_on_in_the_output_folder(run, tmp_path):
    other = write_folder(tmp_path / "other", 6, seed=5, size=(16, 24))
    result = run.fresh("--dataset", other, output=tmp_path / "out")
    assert "5 training and 1 validation images" in result.output
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()
    assert result.settings["flags"]["output_dir"] == str(tmp_path / "out")


@pytest.mark.flags("--dataset-config")
def test_a_configuration_of_a_data_set_is_handed_to_datasets(monkeypatch):
    import datasets

    calls = []
    monkeypatch.setattr("data_utils.sources.hf_datasets.ask_hub", lambda *_: None)
    monkeypatch.setattr(datasets, "load_dataset", lambda *given: calls.append(given) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load_records(config("--dataset", "owner/name", "--dataset-config", "large"))
    assert calls == [("owner/name", "large")]


@pytest.mark.flags("--train-split", "--val-split")
def test_splits_are_those_that_are_named(tmp_path):
    for count, split in enumerate(("train", "val", "night", "dusk"), start=3):
        write_folder(tmp_path / split, count, seed=count, size=(16, 24))
    train_split, val_split = load_records(
        config("--dataset", tmp_path, "--train-split", "night", "--val-split", "dusk")
    )
    assert (len(train_split), len(val_split)) == (5, 6)
    assert [*map(len, load_records(config("--dataset", tmp_path)))] == [3, 4]


@pytest.mark.flags("--val-fraction", "--val-group")
def test_validation_images_are_a_share_in_whole_groups(tmp_path):
    write_folder(tmp_path, 20, seed=0, size=(16, 24))
    assert [*map(len, load_records(config("--dataset", tmp_path)))] == [18, 2]
    assert [*map(len, load_records(config("--dataset", tmp_path, "--val-fraction", "0.3")))] == [14, 6]
    grouped = load_records(config("--dataset", tmp_path, "--val-group", r"cell_(\d)", "--val-fraction", "0.3"))
    names = [{record["name"][:6] for record in records} for records in grouped]
    assert names[0] & names[1] == set()
    assert names[0] | names[1] == {"cell_0", "cell_1"}


@pytest.mark.flags("--fold")
def test_each_image_is_held_out_in_one_of_the_folds(run, tmp_path):
    write_folder(tmp_path, 20, seed=0, size=(16, 24))
    folds = [load_records(config("--dataset", tmp_path, "--fold", f"{k}/3")) for k in (1, 2, 3)]
    held_out = [{record["name"] for record in val} for _, val in folds]
    assert sorted(map(len, held_out)) == [6, 7, 7]
    assert len(set.union(*held_out)) == 20
    assert all(held_out[k].isdisjoint(record["name"] for record in train) for k, (train, _) in enumerate(folds))
    with pytest.raises(DataError, match=r"--fold 1/3 cuts the training images into folds, but .* has the validation"):
        load_records(config("--dataset", run.data, "--fold", "1/3"))


@pytest.mark.flags("--image-column", "--mask-column", "--streaming")
def test_columns_are_read_by_their_names_from_tables_and_streams(run, tmp_path):
    from data_utils.image_io.reader import read_image, read_mask

    write_parquet(tmp_path, run.data)
    columns = ("--dataset", tmp_path, "--image-column", "second", "--mask-column", "third")
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
        load_records(config("--dataset", tmp_path))


@pytest.mark.flags("--mask-suffix", "--allow-unpaired")
def test_masks_are_those_with_the_suffix(tmp_path):
    write_folder(tmp_path, 4, seed=0, size=(16, 24))
    for file in [*(tmp_path / "masks").iterdir()]:
        for kind in ("a", "b"):
            Image.open(file).save(file.with_name(f"{file.stem}_{kind}.png"))
        file.unlink()
    flags = ("--dataset", tmp_path, "--mask-suffix", "_b")
    with pytest.raises(DataError, match="4 of 8 masks"):
        load_records(config(*flags))
    records = [record for split in load_records(config(*flags, "--allow-unpaired")) for record in split]
    assert {str(record["target"])[-6:] for record in records} == {"_b.png"}


@pytest.mark.flags("--exclude")
def test_excluded_images_are_left_out(run, tmp_path):
    (tmp_path / "list.txt").write_text("cell_01.png\n")  # in both splits
    flags = ("--dataset", run.data, "--exclude", tmp_path / "list.txt")
    assert [len(split) for split in load_records(config(*flags))] == [7, 2]


@pytest.mark.flags("--cache")
def test_decoded_images_are_cached_once(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run.fresh("--cache").records[0] == run().records[0]
    assert len([*tmp_path.rglob("*.arrow")]) == 2  # a file for each split
    with mock.patch("data_utils.loading.samples.decode_image", side_effect=AssertionError("decoded again")):
        assert run.fresh("--cache").values("train/loss") == run().values("train/loss")


@pytest.mark.flags("--draft")
def test_a_draft_of_a_photograph_is_decoded_and_recorded(run, tmp_path):
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
def test_checked_data_are_not_trained_on(run, tmp_path):
    result = run.fresh("--check-data", output=tmp_path / "out")
    assert "no problems" in result.output
    assert result.exit_code == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.flags("--on-bad-sample")
def test_a_bad_sample_is_an_error_or_left_out(tmp_path):
    write_folder(tmp_path, 6, seed=0, size=(16, 24))
    (tmp_path / "masks" / "cell_02.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"cell_02\.png"):
        load_dataset_info(config("--dataset", tmp_path))
    info = load_dataset_info(config("--dataset", tmp_path, "--on-bad-sample", "skip"))
    assert len(info.train.bad) + len(info.val.bad) == 1


@pytest.mark.flags("--outside")
def test_values_outside_the_classes_are_ignored_or_background(run):
    other_maps = {}
    for outside in ("ignore", "background"):
        flags = ("--dataset", run.data, "--classes", "0=background,7=cell", "--outside", outside)
        other_maps[outside] = load_dataset_info(config(*flags)).reader.class_map.outside
    assert other_maps == {"ignore": 255, "background": 0}


@pytest.mark.flags("--absent", "--swap")
def test_empty_cells_and_sides_of_points_mean_what_is_given(tmp_path):
    (tmp_path / "images").mkdir(parents=True)
    for name in ("a.png", "b.png"):
        Image.new("L", (24, 16)).save(tmp_path / "images" / name)
    (tmp_path / "points.csv").write_text("image,X1,Y1,X2,Y2\na.png,1,2,3,4\nb.png,,,5,6\n")
    records, _ = load_records(config("--dataset", tmp_path))
    assert records.metadata.task == "landmarks"
    absences = {}
    for absent in ("unknown", "not-there"):
        splits = load_records(config("--dataset", tmp_path, "--absent", absent))
        absences[absent] = sorted(int(part[0]["target"].states[0]) for part in splits)
    assert absences == {"unknown": [UNKNOWN, PRESENT], "not-there": [ABSENT, PRESENT]}
    reader = load_dataset_info(config("--dataset", tmp_path)).reader
    assert reader.landmarks.partners == (0, 1)
    assert not reader.mirrors
    reader = load_dataset_info(config("--dataset", tmp_path, "--swap", "1=2")).reader
    assert reader.landmarks.partners == (1, 0)
    assert reader.mirrors


@pytest.mark.flags("--bands")
def test_bands_are_read_in_the_given_order(tmp_path):
    for number in range(2):
        bands, mask = scene(number)
        write_raster(tmp_path / "images" / f"{number}.tif", bands)
        write_raster(tmp_path / "masks" / f"{number}.tif", mask[None])
    info = load_dataset_info(config("--dataset", tmp_path, "--bands", "3", "1"))
    whole = load_dataset_info(config("--dataset", tmp_path))
    assert info.normalization.mean == (whole.normalization.mean[2], whole.normalization.mean[0])
    assert info.preprocess().bands == ("3", "1")


@pytest.mark.flags("--place", "--no-place")
def test_places_decide_which_bands_and_which_pixels_of_a_mask_count(tmp_path):
    for number in range(2):
        bands, mask = scene(number, channels=4)
        bands[:, :5] = 0
        write_raster(
            tmp_path / "images" / f"{number}.tif", bands.astype(np.uint8), photometric="RGB", ALPHA="NO", nodata=0
        )
        shifted = NORTH_UP @ NORTH_UP.translation(1, 0)
        write_raster(tmp_path / "masks" / f"{number}.tif", mask[None], transform=shifted)
    new, old = (load_dataset_info(config("--dataset", tmp_path, flag)) for flag in ("--place", "--no-place"))
    assert (new.channels, old.channels) == (4, 3)
    assert new.preprocess().place
    assert not old.preprocess().place
    image = np.array(Image.open(tmp_path / "images" / old.train.records.name(0)).convert("RGB"))
    pixels, target = new_samples(old.train, old, old.preprocess(), fit_targets=True).load(0)
    assert np.array_equal(pixels, np.moveaxis(image, 2, 0))
    assert not (target.mask == 255).any()
    _, target = new_samples(new.train, new, new.preprocess(), fit_targets=True).load(0)
    assert (target.mask[:5] == 255).all()
    assert (target.mask[:, 0] == 255).all()


@pytest.mark.flags("--val-blocks")
def test_blocks_of_an_image_are_held_out(run, tmp_path):
    bands, mask = scene(0, size=(200, 260))
    write_raster(tmp_path / "images" / "0.tif", bands)
    write_raster(tmp_path / "masks" / "0.tif", mask[None])
    assert [*map(len, load_records(config("--dataset", tmp_path, "--val-blocks")))] == [11, 1]
    assert [*map(len, load_records(config("--dataset", tmp_path, "--val-blocks", "100")))] == [5, 1]
    with pytest.raises(DataError, match=r"--val-blocks holds out .* has the validation split"):
        load_records(config("--dataset", run.data, "--val-blocks"))


@pytest.mark.flags("--label-column")
def test_classes_are_the_labels_of_the_column(tmp_path):
    features = []
    for number, label in enumerate(("field", "wood")):
        bands, _ = scene(number)
        write_raster(tmp_path / "images" / f"{number}.tif", bands)
        features.append(feature(square(10 * number, 0, 8), kind=label))
    write_geojson(tmp_path / "areas.geojson", features)
    assert load_records(config("--dataset", tmp_path, "--label-column", "kind"))[0].metadata.classes == (
        (0, "background"),
        (1, "field"),
        (2, "wood"),
    )
    assert load_records(config("--dataset", tmp_path))[0].metadata.classes == ((0, "background"), (1, "polygon"))


@pytest.mark.flags("--classes", "--ignore-index")
def test_classes_have_the_given_names_and_ignored_value(run, tmp_path):
    assert run("--classes", "0=ground,255=car").config["preprocess"]["class_names"] == ["ground", "car"]
    write_folder(tmp_path, 4, seed=0, size=(16, 24))
    for file in (tmp_path / "masks").iterdir():
        mask = np.array(Image.open(file))
        mask[0] = 7
        Image.fromarray(mask).save(file)
    info = load_dataset_info(config("--dataset", tmp_path, "--ignore-index", "7"))
    assert info.reader.class_map.values == (0, 255)
    assert info.reader.class_map.ignore_value == 7
    assert load_dataset_info(config("--dataset", tmp_path)).reader.class_map.values == (0, 7, 255)


@pytest.mark.flags("--task")
def test_a_task_chooses_the_reader_of_targets(run, tmp_path, monkeypatch):
    result = run()
    assert parsed().task is None
    assert result.settings["flags"]["task"] == result.settings["identity"]["task"] == "classes"
    assert run("--task", "classes").values("train/loss") == result.values("train/loss")
    refused = run_train(tmp_path / "out", "--dataset", run.data, "--task", "boxes")
    errors = [line for line in refused.output.splitlines() if "error: " in line]
    assert refused.exit_code == 2
    assert len(errors) == 1
    assert "argument --task: invalid choice: 'boxes'" in errors[0]
    assert not (tmp_path / "out").exists()

    class OtherReader(ClassReader):
        """Of another task."""

    monkeypatch.setitem(TASKS, "other", Classes)
    monkeypatch.setitem(TARGETS, "other", OtherReader)
    readers = [load_dataset_info(config("--dataset", run.data, "--task", name)).reader for name in ("classes", "other")]
    assert [*map(type, readers)] == [ClassReader, OtherReader]


@pytest.mark.flags("--regions")
def test_regions_are_learned_from_the_values_that_they_join(run, tmp_path):
    assert (
        parsed("--regions", "box=255", "--task", "overlapping").task == parsed("--regions", "box=255").task == "regions"
    )
    learned = run("--regions", "box=255")
    assert learned.config["task"] == {"name": "regions", "regions": [["box", [255]]]}
    assert learned.config["num_classes"] == 1
    refused = run_train(tmp_path / "out", "--dataset", run.data, "--regions", "box=255", "--task", "classes")
    assert refused.exit_code == 2
    assert "--regions is for --task regions, and --task is classes" in refused.output


@pytest.mark.flags("--dims", "--spacing", "--normalization")
def test_volumes_have_the_given_dimensions_spacing_and_normalization(tmp_path):
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


@pytest.mark.flags("--scale", "--image-size", "--crop-size")
def test_images_have_the_given_size_in_training_and_evaluation(run, monkeypatch):
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


def train_batches(seed: int) -> list:
    from data_utils.loading.batch_sampler import BatchSplit, TrainingSampler

    return [*TrainingSampler(np.full((8, 2), 16), BatchSplit(2, 1, 2, 1), seed, range(4))]


@pytest.mark.flags("--augment", "--seed")
def test_augmentation_and_order_follow_the_seed(run):
    losses = [run("--augment", strength).values("train/loss") for strength in STRENGTHS]
    assert len(set(map(tuple, losses))) == len(STRENGTHS)
    other = run("--augment", "strong", "--seed", "1")
    assert other.values("train/loss") != losses[-1]
    assert (other.weights(0)["stem.conv1.weight"] != run().weights(0)["stem.conv1.weight"]).all()
    # the order of the images belongs to the seed too: with other weights and augmentation apart
    order = [[slot.index for batch in train_batches(seed) for slot in batch] for seed in (0, 0, 1)]
    assert order[0] == order[1] != order[2]
    assert sorted(order[0]) == sorted(order[2])


@pytest.mark.flags("--num-workers")
def test_loaders_have_the_given_number_of_processes(run, monkeypatch):
    from data_utils.loading import loaders

    calls = []
    loader = loaders.DataLoader
    monkeypatch.setattr(loaders, "DataLoader", lambda *a, **k: calls.append(k["num_workers"]) or loader(*a, **k))
    assert run.fresh("--num-workers", "1").settings["num_workers"] == 1
    assert calls == [1, 1]
