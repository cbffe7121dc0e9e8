"""--val-blocks: whole blocks of scenes are held out, and what is read of a block is what the scene holds there."""

from unittest import mock

import numpy as np
import pytest
from PIL import Image
from rasterio.transform import Affine
from support.rasters import NORTH_UP, feature, scene, square, write_geojson, write_raster

from data_utils.config import DataConfig
from data_utils.image_io.places import Grid, read_grid
from data_utils.image_io.reader import read_image, read_mask
from data_utils.loading.dataset import TrainingDataset
from data_utils.sources import blocks
from data_utils.sources.blocks import describe_neighbors
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRows, Records
from runtime.errors import DataError
from train_utils.check_data import check_data
from train_utils.dataset import load_dataset_info

FINER = NORTH_UP @ Affine.translation(-3, 2) @ Affine.scale(0.5)


def config(folder, **settings):
    return DataConfig(str(folder), **{"task": "classes", "val_blocks": 0, **settings})


def write_scene(folder, number=0, *, size=(200, 260), transform=NORTH_UP, mask_transform=None):
    """A scene, and its mask on its grid or on another one."""
    bands, mask = scene(number, channels=3, size=size)
    bands[:, :5, :9] = 0
    write_raster(folder / "images" / f"{number}.tif", bands, nodata=0, transform=transform)
    mask_size = size if mask_transform is None else (2 * size[0], 2 * size[1])
    other = np.random.default_rng(number).integers(0, 3, mask_size).astype(np.uint8)
    write_raster(
        folder / "masks" / f"{number}.tif",
        (mask if mask_transform is None else other)[None],
        transform=mask_transform or transform,
    )
    return bands, mask


def joined(records, read, size):
    """The scene that windows make, and how often each pixel is read."""
    whole = None
    count = np.zeros(size, int)
    for record in records:
        top, left = map(int, record["name"].removesuffix(".tif").split("_")[1:])
        part = read(record)
        rows, columns = slice(top, top + part.shape[0]), slice(left, left + part.shape[1])
        if whole is None:
            whole = np.zeros((*size, *part.shape[2:]), part.dtype)
        whole[rows, columns] = np.ma.getdata(part)
        count[rows, columns] += 1
    return whole, count


def records_of(folder, **settings):
    train, val = load_records(config(folder, **settings))
    return [*train, *val]


def whole_record(folder):
    """The record of the scene 0 without blocks, for which another scene beside it is held out."""
    write_scene(folder, 1)
    (record,) = [r for r in records_of(folder, val_blocks=None, val_fraction=0.5) if r["name"] == "0.tif"]
    for kind in ("images", "masks"):
        (folder / kind / "1.tif").unlink()
    return record


def assert_windows_make_the_scene(folder, bands, mask):
    """Eleven windows to train on and one to validate on hold each pixel once."""
    train, val = load_records(config(folder))
    assert len(train) == 11
    assert len(val) == 1
    pixels, count = joined([*train, *val], lambda record: read_image(record["image"]), bands.shape[1:])
    assert (count == 1).all()
    assert np.array_equal(pixels, np.moveaxis(bands, 0, 2))
    values, _ = joined([*train, *val], lambda record: read_mask(record["target"], "mask"), bands.shape[1:])
    assert np.array_equal(values, mask)


def test_blocks_make_a_scene_together_with_its_mask(tmp_path):
    bands, mask = write_scene(tmp_path)
    assert np.array_equal(read_mask(whole_record(tmp_path)["target"], "mask"), mask)
    assert_windows_make_the_scene(tmp_path, bands, mask)


def test_blocks_make_a_scene_together_with_a_mask_of_another_grid(tmp_path):
    bands, _ = write_scene(tmp_path, mask_transform=FINER)
    mask = read_mask(whole_record(tmp_path)["target"], "mask")
    assert_windows_make_the_scene(tmp_path, bands, mask)


def test_blocks_make_a_scene_together_with_its_polygons(tmp_path):
    bands, _ = scene(0, channels=3, size=(200, 260))
    for number in range(2):
        write_raster(tmp_path / "images" / f"{number}.tif", bands)
    write_geojson(tmp_path / "areas.geojson", [feature(square(20, 30, 90)), feature(square(150.5, 60, 90))])
    (record,) = [r for r in records_of(tmp_path, val_blocks=None, val_fraction=0.5) if r["name"] == "0.tif"]
    mask = read_mask(record["target"], "mask")
    (tmp_path / "images" / "1.tif").unlink()
    assert mask.any()
    assert_windows_make_the_scene(tmp_path, bands, mask)


def test_a_crop_of_a_block_reads_no_more_than_it(tmp_path):
    write_scene(tmp_path)
    info = load_dataset_info(config(tmp_path, crop_size=(32, 40)))
    assert sorted(info.train.class_locations) == list(range(len(info.train)))
    samples = TrainingDataset(info.train, info, info.preprocess())
    (number,) = [i for i, record in enumerate(info.train.records) if record["name"] == "0_0_0.tif"] or [0]
    whole, target = samples.load(number)
    for seed in range(3):
        image, crop = samples.load_crop(number, (32, 40), np.random.default_rng(seed))
        windows = np.lib.stride_tricks.sliding_window_view(whole, image.shape)
        places = np.argwhere((windows == image).all(axis=(3, 4, 5)))
        assert any(
            np.array_equal(target.mask[row : row + 32, column : column + 40], crop.mask) for _, row, column in places
        )


def test_folds_hold_out_each_block_once(tmp_path):
    write_scene(tmp_path)
    held_out = [load_records(config(tmp_path, fold=f"{k}/4"))[1] for k in range(1, 5)]
    names = [record["name"] for part in held_out for record in part]
    assert len(names) == len(set(names)) == 12


def test_the_report_counts_blocks_and_neighbors(tmp_path):
    write_scene(tmp_path)
    report, _ = check_data(config(tmp_path))
    assert "validation blocks: 1 of 12, of about 64 pixels a side\n1 of 1 validation images touch training" in report
    assert "overlap" not in report


def placed(folder, name, right=0.0, **profile):
    """A record of an image of 8 x 9 pixels which lies so many pixels to the right of others."""
    path = write_raster(
        folder / name, np.zeros((1, 8, 9), np.uint8), transform=NORTH_UP @ Affine.translation(right, 0), **profile
    )
    return {"image": str(path), "target": str(path), "name": name}


def neighbors_at(folder, right):
    """What is said of a validation image so far to the right of a training image."""
    Image.new("L", (9, 8)).save(folder / "plain.png")
    plain = {"image": str(folder / "plain.png"), "target": "", "name": "plain.png"}  # it has no place
    train = Records(ListRows([plain, placed(folder, "far.tif", 99.0), placed(folder, "a.tif")]))
    return describe_neighbors(train, Records(ListRows([placed(folder, "b.tif", right)])))


@pytest.mark.parametrize(
    ("right", "verb"), [(9.4, "touch"), (8.6, "touch"), (8.4, "overlap"), (-8.4, "overlap"), (-9.4, "touch")]
)
def test_images_touch_up_to_half_a_pixel_beside_each_other(tmp_path, right, verb):
    line = f"1 of 1 validation images {verb} training images in the world: b.tif and a.tif"
    assert neighbors_at(tmp_path, right) == [line]


@pytest.fixture(scope="module")
def mosaic(tmp_path_factory):
    """Sixteen small images of a mosaic, each at two dates."""
    folder = tmp_path_factory.mktemp("mosaic")
    for number in range(16):
        place = NORTH_UP @ Affine.translation(32 * (number % 4), 32 * (number // 4))
        bands, mask = scene(number, channels=2, size=(32, 32))
        for date in range(2):
            write_raster(folder / "images" / f"{number}_{date}.tif", bands, transform=place)
            write_raster(folder / "masks" / f"{number}_{date}.tif", mask[None], transform=place)
    return folder


QUARTER = {"val_blocks": 64, "val_fraction": 0.25}


def test_images_of_one_block_are_on_one_side(mosaic):
    train, val = load_records(config(mosaic, **QUARTER))
    assert len(train) == 24
    assert len(val) == 8
    held_out = {int(record["name"].split("_")[0]) for record in val}
    assert held_out in ({0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15})


@pytest.mark.parametrize(
    ("blocks", "lines"),
    [
        (64, ["validation blocks: 8 of 32, of about 64 pixels a side", "6 of 8 validation images touch training"]),
        (None, ["6 of 8 validation images overlap training images in the world"]),
    ],
    ids=["blocks", "no blocks"],
)
def test_images_that_touch_or_overlap_others_in_the_world_are_counted(mosaic, blocks, lines):
    described = "\n".join(describe_neighbors(*load_records(config(mosaic, val_blocks=blocks, val_fraction=0.25))))
    assert all(line in described for line in lines)
    assert blocks is None or "overlap" not in described


def test_the_identity_of_a_scene_is_that_of_its_blocks(tmp_path):
    write_scene(tmp_path)
    infos = [load_dataset_info(config(tmp_path, val_blocks=side, crop_size=(32, 32))) for side in (0, 0, 128)]
    first, again, others = (info.fingerprint() for info in infos)
    assert first == again != others


def images_at(folder, *places, size=(64, 64)):
    """Images at places (column, row) of `NORTH_UP`, or in a CRS of their own."""
    for number, (column, row, *crs) in enumerate(places):
        profile = {"transform": NORTH_UP @ Affine.translation(column, row), **({"crs": crs[0]} if crs else {})}
        write_raster(folder / "images" / "s" / f"{number}.tif", np.zeros((1, *size), np.uint8), **profile)
        write_raster(folder / "masks" / "s" / f"{number}.tif", np.zeros((1, *size), np.uint8), **profile)
    return folder


def windows_of(folder, **settings):
    """The names of the windows of both splits."""
    return sorted(record["name"] for part in load_records(config(folder, **settings)) for record in part)


@pytest.mark.parametrize(
    ("places", "size", "folds", "names"),
    [
        ([(0, 0)], (100, 64), 2, ["s/0_0_0.tif", "s/0_50_0.tif"]),
        ([(0, 0), (0, 99)], (60, 70), 2, ["s/0.tif", "s/1.tif"]),
        ([(0, 0)], (200, 100), 6, [f"s/0_{top}_{left}.tif" for top in (0, 133, 67) for left in (0, 50)]),
    ],
    ids=["two windows", "whole images", "six windows"],
)
def test_windows_are_about_a_block_large_and_named_by_their_corners(tmp_path, places, size, folds, names):
    folder = images_at(tmp_path, *places, size=size)
    assert windows_of(folder, val_blocks=64, fold=f"1/{folds}") == names


@pytest.mark.parametrize(
    "places",
    [
        [(0, 0), (-64, 0), (0, -64), (-64, -64)],
        [(0, 0), (0, 0, "EPSG:32634")],
        [(0, 0), (32, 0, "EPSG:32634"), (64, 0, "EPSG:32634")],
    ],
    ids=["to the left and above", "another system", "its own first image"],
)
def test_blocks_begin_at_the_first_image_of_each_coordinate_system(tmp_path, places):
    """So each of these images is a block of its own, and a fold too."""
    folder = images_at(tmp_path, *places)
    names = [f"s/{number}.tif" for number in range(len(places))]
    assert windows_of(folder, val_blocks=64, fold=f"1/{len(places)}") == names


def test_blocks_beside_a_validation_split_are_a_one_line_error(tmp_path):
    for split in ("train", "val"):
        images_at(tmp_path / split, (0, 0))
    line = f"--val-blocks holds out a part of the training images, but {tmp_path} has the validation split val; leave"
    with pytest.raises(DataError, match=line):
        load_records(config(tmp_path))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"val_blocks": 4096}, "--val-blocks: blocks of 4096 pixels hold all images together; give a smaller number"),
        ({"place": False}, "--val-blocks cuts images by their place, which --no-place leaves out; give --place"),
        ({"val_group": "a"}, "--val-blocks and --val-group: both say what is held out together"),
        ({"val_group": ""}, "--val-blocks and --val-group: both say what is held out together"),
    ],
)
def test_blocks_that_cannot_be_are_a_one_line_error(tmp_path, settings, line):
    write_scene(tmp_path)
    with pytest.raises(DataError, match=line):
        load_records(config(tmp_path, **settings))


@pytest.mark.parametrize(
    ("sizes", "crop", "side"),
    [
        ([(400, 400), (400, 300)], None, 84),  # forty blocks of all images together
        ([(100, 100)], None, 64),
        ([(100, 100)], (48, 80), 80),
        ([(50_000, 50_000)], (256, 256), 4096),
        ([(100, 100)], (64, 5000), 5000),
    ],
)
def test_blocks_are_forty_of_all_images_but_neither_tiny_nor_huge(sizes, crop, side):
    assert blocks.block_side(sizes, crop) == side


def test_a_damaged_header_makes_no_blocks_without_end(tmp_path):
    write_scene(tmp_path)
    claimed = Grid(read_grid(str(tmp_path / "images" / "0.tif")).place, (200, 2**52))
    with (
        mock.patch.object(blocks, "read_source_grid", return_value=claimed),
        pytest.raises(DataError, match=r"0\.tif says that it has 200 x 4503599627370496 pixels, which are too many"),
    ):
        load_records(DataConfig(str(tmp_path), val_blocks=8))


def test_windows_are_labeled_as_their_image_is(tmp_path):
    folder = images_at(tmp_path, (0, 0), size=(200, 100))
    (folder / "classes.csv").write_text("image,classes\ns/0,0\n")
    for records in load_records(config(folder, val_blocks=64)):
        assert records.label_set(len(records) - 1) == ("0",)
