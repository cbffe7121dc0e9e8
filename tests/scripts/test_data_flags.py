"""Flags of train.py that say which data are read, and how."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from support.flag_runs import Trainer, config
from support.folders import write_folder
from support.in_process import parsed, run_train
from support.rasters import NORTH_UP, feature, scene, square, write_geojson, write_raster
from support.volumes import case

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.image_io.reader import read_image, read_mask
from data_utils.loading import loaders
from data_utils.loading.augmentation import STRENGTHS
from data_utils.loading.batch_sampler import BatchSplit, TrainingSampler
from data_utils.loading.samples import new_samples
from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.sources.hf_datasets import HFRows
from data_utils.sources.load import load_records
from data_utils.sources.streams.parquet import ParquetRows
from runtime.errors import DataError
from tasks import TASKS
from tasks.classes.reader import ClassReader
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


@pytest.mark.flags("--dataset-config")
def test_dataset_config_chooses_a_part_of_a_data_set_of_the_hub(monkeypatch):
    import datasets

    load_dataset = mock.Mock(side_effect=ZeroDivisionError)
    monkeypatch.setattr("data_utils.sources.hf_datasets.ask_hub", lambda *_: None)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ZeroDivisionError):
        load_records(config("--dataset", "owner/name", "--dataset-config", "large"))
    load_dataset.assert_called_once_with("owner/name", "large")


def split_sizes(*flags: str | Path) -> list[int]:
    """How many images are for training and for validation."""
    return [len(split) for split in load_records(config(*flags))]


@pytest.mark.flags("--train-split", "--val-split")
def test_splits_are_chosen_by_their_names(tmp_path):
    for count, split in enumerate(("train", "val", "night", "dusk"), start=3):
        write_folder(tmp_path / split, count, seed=count, size=(16, 24))
    assert split_sizes("--dataset", tmp_path) == [3, 4]
    assert split_sizes("--dataset", tmp_path, "--train-split", "night", "--val-split", "dusk") == [5, 6]


@pytest.mark.flags("--val-fraction")
def test_val_fraction_is_held_out(tmp_path):
    write_folder(tmp_path, 20, seed=0, size=(16, 24))
    assert split_sizes("--dataset", tmp_path) == [18, 2]
    assert split_sizes("--dataset", tmp_path, "--val-fraction", "0.3") == [14, 6]


@pytest.mark.flags("--val-group")
def test_val_group_keeps_images_of_a_group_in_one_split(tmp_path):
    write_folder(tmp_path, 20, seed=0, size=(16, 24))
    splits = load_records(config("--dataset", tmp_path, "--val-group", r"cell_(\d)", "--val-fraction", "0.3"))
    train_groups, val_groups = ({record["name"][:6] for record in records} for records in splits)
    assert train_groups & val_groups == set()
    assert train_groups | val_groups == {"cell_0", "cell_1"}


@pytest.mark.flags("--fold")
def test_folds_hold_out_each_image_once(tmp_path):
    write_folder(tmp_path, 20, seed=0, size=(16, 24))
    held_out = []
    for number in range(1, 4):
        train_split, val_split = load_records(config("--dataset", tmp_path, "--fold", f"{number}/3"))
        held_out.append({record["name"] for record in val_split})
        assert held_out[-1].isdisjoint(record["name"] for record in train_split)
    assert sorted(map(len, held_out)) == [6, 7, 7]
    assert len(set.union(*held_out)) == 20


@pytest.mark.flags("--fold")
def test_fold_of_a_data_set_with_a_validation_split_is_refused(run):
    with pytest.raises(DataError, match=r"--fold 1/3 holds out a part .* has the validation"):
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


@pytest.mark.flags("--image-column")
def test_image_column_is_asked_for_where_several_hold_images(columns):
    with pytest.raises(DataError, match="--image-column"):
        load_records(config("--dataset", columns))


@pytest.fixture
def two_masks_each(tmp_path) -> Path:
    """A folder of four images with the masks _a and _b each."""
    write_folder(tmp_path, 4, seed=0, size=(16, 24))
    for file in [*(tmp_path / "masks").iterdir()]:
        for kind in ("a", "b"):
            Image.open(file).save(file.with_name(f"{file.stem}_{kind}.png"))
        file.unlink()
    return tmp_path


@pytest.mark.flags("--mask-suffix", "--allow-unpaired")
def test_mask_suffix_chooses_the_masks(two_masks_each):
    splits = load_records(config("--dataset", two_masks_each, "--mask-suffix", "_b", "--allow-unpaired"))
    assert {str(record["target"])[-6:] for split in splits for record in split} == {"_b.png"}


@pytest.mark.flags("--allow-unpaired")
def test_masks_without_an_image_are_refused_unless_they_are_allowed(two_masks_each):
    with pytest.raises(DataError, match="4 files without partner"):
        load_records(config("--dataset", two_masks_each, "--mask-suffix", "_b"))


@pytest.mark.flags("--exclude")
def test_exclude_leaves_listed_images_out_of_both_splits(run, tmp_path):
    (tmp_path / "list.txt").write_text("cell_01.png\n")
    assert split_sizes("--dataset", run.data, "--exclude", tmp_path / "list.txt") == [7, 2]


@pytest.mark.flags("--cache")
def test_cache_decodes_images_once(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run.fresh("--cache").records[0] == run().records[0]
    assert len([*tmp_path.rglob("*.arrow")]) == 2  # a file for each split
    with mock.patch("data_utils.loading.samples.decode_image", side_effect=AssertionError("decoded again")):
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
def test_check_data_ends_before_the_run(run, tmp_path):
    result = run.fresh("--check-data", output=tmp_path / "out")
    assert "no problems" in result.output
    assert result.exit_code == 0
    assert not (tmp_path / "out").exists()
    write_folder(tmp_path / "data", 6, seed=0, size=(16, 24))
    (tmp_path / "data" / "masks" / "cell_02.png").write_bytes(b"no picture")
    result = run.fresh("--dataset", tmp_path / "data", "--check-data", output=tmp_path / "out")
    assert "cell_02.png" in result.output
    assert result.exit_code == 1


@pytest.mark.flags("--on-bad-sample")
def test_on_bad_sample_skips_or_refuses_it(tmp_path):
    write_folder(tmp_path, 6, seed=0, size=(16, 24))
    (tmp_path / "masks" / "cell_02.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"cell_02\.png"):
        load_dataset_info(config("--dataset", tmp_path))
    info = load_dataset_info(config("--dataset", tmp_path, "--on-bad-sample", "skip"))
    assert len(info.train.bad) + len(info.val.bad) == 1


@pytest.mark.flags("--outside")
@pytest.mark.parametrize(("outside", "index"), [("ignore", 255), ("background", 0)])
def test_outside_says_what_other_values_mean(run, outside, index):
    flags = ("--dataset", run.data, "--classes", "0=background,7=cell", "--outside", outside)
    assert load_dataset_info(config(*flags)).reader.class_map.outside == index


@pytest.fixture
def points_folder(tmp_path) -> Path:
    """Two images with a table of two points, of which the second image lacks the first."""
    (tmp_path / "images").mkdir(parents=True)
    for name in ("a.png", "b.png"):
        Image.new("L", (24, 16)).save(tmp_path / "images" / name)
    (tmp_path / "points.csv").write_text("image,X1,Y1,X2,Y2\na.png,1,2,3,4\nb.png,,,5,6\n")
    return tmp_path


@pytest.mark.flags("--absent")
@pytest.mark.parametrize(
    ("absent", "states"), [("unknown", [UNKNOWN, PRESENT]), ("not-there", [ABSENT, PRESENT])], ids=lambda value: None
)
def test_absent_says_what_an_empty_cell_means(points_folder, absent, states):
    splits = load_records(config("--dataset", points_folder, "--absent", absent))
    assert splits[0].metadata.task == "landmarks"
    assert sorted(int(split[0]["target"].states[0]) for split in splits) == states


@pytest.mark.flags("--swap")
@pytest.mark.parametrize(
    ("flags", "partners", "mirrors"), [([], (0, 1), False), (["--swap", "1=2"], (1, 0), True)], ids=["none", "a pair"]
)
def test_swap_names_points_that_change_places_in_the_mirror(points_folder, flags, partners, mirrors):
    reader = load_dataset_info(config("--dataset", points_folder, *flags)).reader
    assert reader.landmarks.partners == partners
    assert reader.mirrors is mirrors


@pytest.mark.flags("--bands")
def test_bands_are_read_in_their_order(tmp_path):
    for number in range(2):
        bands, mask = scene(number)
        write_raster(tmp_path / "images" / f"{number}.tif", bands)
        write_raster(tmp_path / "masks" / f"{number}.tif", mask[None])
    info = load_dataset_info(config("--dataset", tmp_path, "--bands", "3", "1"))
    whole = load_dataset_info(config("--dataset", tmp_path))
    assert info.normalization.mean == (whole.normalization.mean[2], whole.normalization.mean[0])
    assert info.preprocess().bands == ("3", "1")


@pytest.fixture
def placed_folder(tmp_path) -> Path:
    """Two rasters with five rows without data, whose masks begin a pixel further to the right."""
    for number in range(2):
        bands, mask = scene(number, channels=4)
        bands[:, :5] = 0
        write_raster(
            tmp_path / "images" / f"{number}.tif", bands.astype(np.uint8), photometric="RGB", ALPHA="NO", nodata=0
        )
        shifted = NORTH_UP @ NORTH_UP.translation(1, 0)
        write_raster(tmp_path / "masks" / f"{number}.tif", mask[None], transform=shifted)
    return tmp_path


@pytest.mark.flags("--place")
def test_place_takes_masks_at_their_place_in_the_world(placed_folder):
    info = load_dataset_info(config("--dataset", placed_folder, "--place"))
    _, target = new_samples(info.train, info, info.preprocess(), fit_targets=True).load(0)
    assert info.channels == 4
    assert info.preprocess().place
    assert (target.mask[:5] == 255).all()
    assert (target.mask[:, 0] == 255).all()


@pytest.mark.flags("--no-place")
def test_no_place_takes_masks_pixel_by_pixel(placed_folder):
    info = load_dataset_info(config("--dataset", placed_folder, "--no-place"))
    pixels, target = new_samples(info.train, info, info.preprocess(), fit_targets=True).load(0)
    image = np.array(Image.open(placed_folder / "images" / info.train.records.name(0)).convert("RGB"))
    assert info.channels == 3
    assert not info.preprocess().place
    assert np.array_equal(pixels, np.moveaxis(image, 2, 0))
    assert not (target.mask == 255).any()


@pytest.mark.flags("--val-blocks")
@pytest.mark.parametrize(("flags", "sizes"), [([], [11, 1]), (["100"], [5, 1])], ids=["default", "100 pixels"])
def test_val_blocks_holds_out_a_part_of_each_scene(tmp_path, flags, sizes):
    bands, mask = scene(0, size=(200, 260))
    write_raster(tmp_path / "images" / "0.tif", bands)
    write_raster(tmp_path / "masks" / "0.tif", mask[None])
    assert split_sizes("--dataset", tmp_path, "--val-blocks", *flags) == sizes


@pytest.mark.flags("--val-blocks")
def test_val_blocks_of_a_data_set_with_a_validation_split_is_refused(run):
    with pytest.raises(DataError, match=r"--val-blocks holds out .* has the validation split"):
        load_records(config("--dataset", run.data, "--val-blocks"))


@pytest.mark.flags("--label-column")
@pytest.mark.parametrize(
    ("flags", "classes"),
    [
        (["--label-column", "kind"], ((0, "background"), (1, "field"), (2, "wood"))),
        ([], ((0, "background"), (1, "polygon"))),
    ],
    ids=["a column", "none"],
)
def test_label_column_names_the_classes_of_polygons(tmp_path, flags, classes):
    features = []
    for number, label in enumerate(("field", "wood")):
        bands, _ = scene(number)
        write_raster(tmp_path / "images" / f"{number}.tif", bands)
        features.append(feature(square(10 * number, 0, 8), kind=label))
    write_geojson(tmp_path / "areas.geojson", features)
    records, _ = load_records(config("--dataset", tmp_path, *flags))
    assert records.metadata.classes == classes


@pytest.mark.flags("--classes")
def test_classes_have_the_names_that_they_are_given(run):
    assert run("--classes", "0=ground,255=car").config["preprocess"]["class_names"] == ["ground", "car"]


@pytest.mark.flags("--ignore-index")
@pytest.mark.parametrize(
    ("flags", "values", "ignore_value"),
    [(["--ignore-index", "7"], (0, 255), 7), ([], (0, 7, 255), None)],
    ids=["ignored", "a class"],
)
def test_ignore_index_is_no_class(tmp_path, flags, values, ignore_value):
    write_folder(tmp_path, 4, seed=0, size=(16, 24))
    for file in (tmp_path / "masks").iterdir():
        mask = np.array(Image.open(file))
        mask[0] = 7
        Image.fromarray(mask).save(file)
    class_map = load_dataset_info(config("--dataset", tmp_path, *flags)).reader.class_map
    assert class_map.values == values
    assert class_map.ignore_value == ignore_value


@pytest.mark.flags("--task")
def test_task_is_found_in_the_data_unless_it_is_given(run):
    result = run()
    assert parsed().task is None
    assert result.settings["flags"]["task"] == "classes"
    assert result.settings["identity"]["task"] == "classes"
    assert run("--task", "classes").values("train/loss") == result.values("train/loss")


@pytest.mark.flags("--task")
def test_task_that_is_unknown_is_refused(run, tmp_path):
    refused = run_train(tmp_path / "out", "--dataset", run.data, "--task", "boxes")
    (line,) = [line for line in refused.output.splitlines() if "error: " in line]
    assert refused.exit_code == 2
    assert "argument --task: 'boxes' is not one of" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.flags("--task")
def test_task_chooses_how_targets_are_read(run, monkeypatch):
    class OtherReader(ClassReader):
        """Reads the targets of another task."""

    monkeypatch.setitem(TASKS, "other", TASKS["classes"]._replace(reader=OtherReader))
    readers = [load_dataset_info(config("--dataset", run.data, "--task", name)).reader for name in ("classes", "other")]
    assert [*map(type, readers)] == [ClassReader, OtherReader]


@pytest.mark.flags("--regions")
@pytest.mark.parametrize("flags", [[], ["--task", "overlapping"]], ids=["alone", "with overlapping"])
def test_regions_are_a_task(flags):
    assert parsed("--regions", "box=255", *flags).task == "regions"


@pytest.mark.flags("--regions")
def test_regions_are_learned(run):
    result = run("--regions", "box=255")
    assert result.config["task"] == {"name": "regions", "regions": [["box", [255]]]}
    assert result.config["num_classes"] == 1


@pytest.mark.flags("--regions")
def test_regions_of_another_task_are_refused(run, tmp_path):
    refused = run_train(tmp_path / "out", "--dataset", run.data, "--regions", "box=255", "--task", "classes")
    assert refused.exit_code == 2
    assert "--regions is for --task regions, and --task is classes" in refused.output


@pytest.fixture
def volumes_info(tmp_path) -> Callable[..., DatasetInfo]:
    """A function that opens two volumes of (6, 8, 10) voxels with some flags."""
    for kind, voxels in zip(("images", "masks"), case(0, (6, 8, 10)), strict=True):
        (tmp_path / kind).mkdir()
        for name in "ab":
            np.save(tmp_path / kind / f"{name}.npy", voxels)

    def info(*flags: str) -> DatasetInfo:
        return load_dataset_info(config("--dataset", tmp_path, *flags))

    return info


@pytest.mark.flags("--dims", "--spacing")
def test_dims_of_3_are_volumes_of_a_spacing(volumes_info):
    info = volumes_info("--dims", "3", "--spacing", "4", "2", "0.5")
    assert info.train.sizes.tolist() == [[6, 8, 10]]
    assert info.preprocess().spacing == (4, 2, 0.5)
    assert info.preprocess().standardize


@pytest.mark.flags("--dims")
def test_dims_of_2_are_slices(volumes_info):
    assert volumes_info("--spacing", "4", "2", "1", "--dims", "2").train.sizes.tolist() == [[8, 10]] * 6


@pytest.mark.flags("--normalization")
def test_normalization_of_ct_clips_values(volumes_info):
    assert volumes_info("--spacing", "4", "2", "1", "--normalization", "ct").preprocess().clip is not None


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


def image_order(seed: int) -> list[int]:
    """The order in which an epoch of eight images comes."""
    sampler = TrainingSampler(np.full((8, 2), 16), BatchSplit(2, 1, 2, 1), seed, range(4))
    return [slot.index for batch in sampler for slot in batch]


@pytest.mark.flags("--seed")
def test_seed_chooses_the_order_of_images():
    assert image_order(0) == image_order(0)
    assert image_order(0) != image_order(1)
    assert sorted(image_order(0)) == sorted(image_order(1))


@pytest.mark.flags("--num-workers")
def test_num_workers_load_for_both_splits(run, monkeypatch):
    calls = []
    loader = loaders.DataLoader
    monkeypatch.setattr(loaders, "DataLoader", lambda *a, **k: calls.append(k["num_workers"]) or loader(*a, **k))
    assert run.fresh("--num-workers", "1").settings["num_workers"] == 1
    assert calls == [1, 1]
