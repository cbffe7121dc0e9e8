"""--val-blocks: whole blocks of scenes are held out, and what is read of a block is what the scene holds there.

Modules: data_utils/sources/blocks.py, data_utils/image_io/scene_windows.py.
"""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from in_process import run_train
from PIL import Image
from rasterio.transform import Affine
from rasters import NORTH_UP, feature, scene, square, write_geojson, write_raster

from data_utils.analysis.check_data import check_data
from data_utils.analysis.dataset_info import load_dataset_info
from data_utils.config import DataConfig
from data_utils.image_io.placed_masks import Grid, grid_of
from data_utils.image_io.reader import read_header, read_image, read_mask
from data_utils.image_io.scene_windows import Box, SceneWindow
from data_utils.image_io.windowed import open_if_large
from data_utils.loading.samples import new_samples
from data_utils.sources import blocks
from data_utils.sources.annotations.cityscapes import EvaluatedIds
from data_utils.sources.blocks import BlockRecords, Window, describe_neighbors
from data_utils.sources.load import load_records
from data_utils.sources.records import ListRecords, Metadata
from runtime.errors import CheckpointError, DataError, ImageError

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


@pytest.mark.parametrize("labels", ["mask", "finer mask", "polygons"])
def test_blocks_make_the_scene_together(tmp_path, labels):
    size = (200, 260)
    bands, mask = write_scene(tmp_path, mask_transform=FINER if labels == "finer mask" else None)
    if labels == "polygons":
        (tmp_path / "masks" / "0.tif").unlink()
        (tmp_path / "masks").rmdir()
        write_geojson(tmp_path / "areas.geojson", [feature(square(20, 30, 90)), feature(square(150.5, 60, 90))])
    settings = {"val_blocks": None, "val_fraction": 0.5}
    write_scene(tmp_path, 1) if labels != "polygons" else write_raster(tmp_path / "images" / "1.tif", bands)
    whole = {record["name"]: record for part in load_records(config(tmp_path, **settings)) for record in part}
    (tmp_path / "images" / "1.tif").unlink()
    (tmp_path / "masks" / "1.tif").unlink(missing_ok=True)
    train, val = load_records(config(tmp_path))
    records = [*train, *val]
    assert len(val) == 1
    assert len(train) == 11
    pixels, count = joined(records, lambda record: read_image(record["image"]), size)
    assert (count == 1).all()
    assert np.array_equal(pixels, np.moveaxis(bands, 0, 2))
    values, _ = joined(records, lambda record: read_mask(record["target"], "mask"), size)
    assert np.array_equal(values, read_mask(whole["0.tif"]["target"], "mask"))
    if labels == "mask":
        assert np.array_equal(values, mask)


def test_a_scene_alone_is_told_of_blocks_and_a_shift_of_its_mask_is_said(tmp_path):
    bands, mask = scene(0, size=(200, 260))
    write_raster(tmp_path / "images" / "0.tif", bands)
    write_raster(tmp_path / "masks" / "0.tif", mask[None], transform=NORTH_UP @ Affine.translation(0.5, 0.5))
    with pytest.raises(DataError, match=r"the data set has 1; --val-blocks cuts the scene into several"):
        load_records(config(tmp_path, val_blocks=None))
    assert any("+0.50 to the right and +0.50 down" in line for line in load_dataset_info(config(tmp_path)).warnings)


def test_a_crop_of_a_block_reads_no_more_than_it(tmp_path):
    write_scene(tmp_path)
    info = load_dataset_info(config(tmp_path, crop_size=(32, 40)))
    assert sorted(info.train.class_locations) == list(range(len(info.train)))
    samples = new_samples(info.train, info, info.preprocess(), fit_targets=True)
    (number,) = [i for i, record in enumerate(info.train.records) if record["name"] == "0_0_0.tif"] or [0]
    whole, target = samples.load(number)
    for seed in range(3):
        image, crop = samples.load_crop(number, (32, 40), np.random.default_rng(seed))
        windows = np.lib.stride_tricks.sliding_window_view(whole, image.shape)
        places = np.argwhere((windows == image).all(axis=(3, 4, 5)))
        assert any(
            np.array_equal(target.mask[row : row + 32, column : column + 40], crop.mask) for _, row, column in places
        )


def test_windows_of_a_scene_without_a_row_in_a_list_are_named(tmp_path):
    for number in range(2):
        write_scene(tmp_path, number)
    (tmp_path / "classes.csv").write_text("image,classes\n0,1\n")
    info = load_dataset_info(config(tmp_path))
    windows = [record["name"] for split in (info.train, info.val) for record in split.records]
    unlisted = sum(name.startswith("1_") for name in windows)
    (line,) = [line for line in info.warnings if "have no row in classes.csv" in line]
    assert 0 < unlisted < len(windows)
    assert line.startswith(f"{unlisted} images")


def test_folds_hold_out_each_block_once(tmp_path):
    write_scene(tmp_path)
    held_out = [load_records(config(tmp_path, fold=(k, 4)))[1] for k in range(1, 5)]
    names = [record["name"] for part in held_out for record in part]
    assert len(names) == len(set(names)) == 12
    with pytest.raises(DataError, match=r"--fold 1/30: there are only 12 blocks, and each fold needs one"):
        load_records(config(tmp_path, fold=(1, 30)))
    for settings in ({}, {"fold": (1, 4)}):
        held_out_indices = {
            tuple(load_records(config(tmp_path, seed=seed, **settings))[1].indices) for seed in range(4)
        }
        assert len(held_out_indices) > 1


def test_the_windows_of_an_image_and_of_its_mask_are_told_apart_and_blocks_of_another_side_are_others(tmp_path):
    write_scene(tmp_path)
    train, val = load_records(config(tmp_path))
    for record in (*train, *val):
        assert not record["image"].is_mask
        assert record["target"].is_mask
    records = train.records.records
    sides = [BlockRecords(records, train.records.windows, [(200, 260)], side).digest for side in (64, 65)]
    assert None not in sides
    assert sides[0] != sides[1]
    report, _ = check_data(config(tmp_path))
    assert "validation blocks: 1 of 12, of about 64 pixels a side\n1 of 1 validation images touch training" in report
    assert "overlap" not in report


def placed(folder, name, right=0.0, **profile):
    """A record of an image of 8 x 9 pixels which lies so many pixels to the right of others."""
    path = write_raster(
        folder / name, np.zeros((1, 8, 9), np.uint8), transform=NORTH_UP @ Affine.translation(right, 0), **profile
    )
    return {"image": str(path), "target": str(path), "name": name}


@pytest.mark.parametrize(
    ("right", "verb"),
    [(9.6, None), (9.4, "touch"), (8.6, "touch"), (8.4, "overlap"), (-8.4, "overlap"), (-9.4, "touch")],
)
def test_images_touch_up_to_half_a_pixel_beside_each_other(tmp_path, right, verb):
    Image.new("L", (9, 8)).save(tmp_path / "plain.png")
    plain = {"image": str(tmp_path / "plain.png"), "target": "", "name": "plain.png"}  # it has no place
    train = ListRecords([plain, placed(tmp_path, "far.tif", 99.0), placed(tmp_path, "a.tif")])
    lines = describe_neighbors(train, ListRecords([placed(tmp_path, "b.tif", right)]))
    expected = f"1 of 1 validation images {verb} training images in the world: b.tif and a.tif"
    assert lines == ([expected] if verb else [])


def test_an_image_that_lies_turned_in_the_world_touches_what_it_covers(tmp_path):
    turned = write_raster(
        tmp_path / "b.tif", np.zeros((1, 8, 9), np.uint8), transform=NORTH_UP @ Affine(0, 1, 0, -1, 0, 9)
    )
    record = {"image": str(turned), "target": str(turned), "name": "b.tif"}
    for right, lines in (
        (7.0, ["1 of 1 validation images overlap training images in the world: a.tif and b.tif"]),
        (9.0, []),
    ):
        assert describe_neighbors(ListRecords([record]), ListRecords([placed(tmp_path, "a.tif", right)])) == lines


def test_a_window_is_of_the_size_of_its_own_image(tmp_path):
    sources = ListRecords([placed(tmp_path, "a.tif"), placed(tmp_path, "b.tif", 50.0)])
    box = Box(0, 4, 0, 5)
    records = BlockRecords(sources, [Window(1, box), Window(0, box)], [(8, 9), (6, 7)], 5)
    for index, size in enumerate([(6, 7), (8, 9)]):
        assert records[index]["image"].size == size
        assert records[index]["target"].size == size


def test_only_images_of_one_coordinate_system_are_neighbors_and_three_of_them_are_named(tmp_path):
    system = "+proj=tmerc +lat_0=0 +lon_0={} +k=1 +x_0=500000 +y_0=0 +ellps=GRS80 +units=m"
    train = ListRecords([placed(tmp_path, "a.tif"), placed(tmp_path, "b.tif", crs=system.format(9))])
    images = [placed(tmp_path, "other.tif", crs="EPSG:32634"), placed(tmp_path, "c.tif", crs=system.format(12))]
    images += [placed(tmp_path, f"{number}.tif") for number in range(4)]
    assert describe_neighbors(train, ListRecords(images)) == [
        "4 of 6 validation images overlap training images in the world:"
        " 0.tif and a.tif, 1.tif and a.tif, 2.tif and a.tif, ..."
    ]
    assert describe_neighbors(train, ListRecords([placed(tmp_path, "d.tif", crs=system.format(9))])) == [
        "1 of 1 validation images overlap training images in the world: d.tif and b.tif"
    ]


def test_images_of_one_block_are_on_one_side(tmp_path):
    """Small images of a mosaic, and two of one place."""
    for number in range(16):
        place = NORTH_UP @ Affine.translation(32 * (number % 4), 32 * (number // 4))
        for date in range(2):
            bands, mask = scene(number, channels=2, size=(32, 32))
            write_raster(tmp_path / "images" / f"{number}_{date}.tif", bands, transform=place)
            write_raster(tmp_path / "masks" / f"{number}_{date}.tif", mask[None], transform=place)
    train, val = load_records(config(tmp_path, val_blocks=64, val_fraction=0.25))
    assert len(train) == 24
    assert len(val) == 8
    held_out = {int(record["name"].split("_")[0]) for record in val}
    assert held_out in ({0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15})
    report, problems = check_data(config(tmp_path, val_blocks=64, val_fraction=0.25))
    assert problems == 0
    assert "validation blocks: 8 of 32, of about 64 pixels a side" in report
    assert "6 of 8 validation images touch training images in the world" in report
    assert "overlap" not in report
    excluded = tmp_path / "excluded.txt"
    excluded.write_text("0_0.tif\n")
    report, _ = check_data(config(tmp_path, val_blocks=64, val_fraction=0.25, exclude=str(excluded)))
    assert "of 31, of about 64 pixels a side" in report
    report, _ = check_data(config(tmp_path, val_blocks=None, val_fraction=0.25))
    assert "6 of 8 validation images overlap training images in the world" in report


def test_a_run_on_one_scene_goes_on_with_the_same_blocks(tmp_path):
    write_scene(tmp_path / "data")
    flags = ["--dataset", tmp_path / "data", "--val-blocks", "--crop-size", "32", "32", "--encoder", "none"]
    flags += ["--base-channels", "4", "--depth", "2", "--batch-size", "4", "--num-workers", "0"]
    flags += ["--checkpoint-every", "2", "--log-every", "1"]
    whole = run_train(tmp_path / "whole", *flags, "--max-steps", "4")
    assert whole.exit_code == 0, whole.output
    half = ["--max-steps", "4", "--resume", tmp_path / "whole" / "checkpoints" / "step-00000002"]
    again = run_train(tmp_path / "again", *flags, *half)
    assert again.exit_code == 0, again.output
    assert again.values("train/loss") == whole.values("train/loss")[2:]
    assert again.values("eval/loss")[-1] == whole.values("eval/loss")[-1]
    flags[3:3] = ["128"]
    with pytest.raises(CheckpointError, match=r"data set is 11 \+ 1 images .*, this run's is 3 \+ 1 images"):
        run_train(tmp_path / "other", *flags, *half)


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


def test_windows_are_about_a_block_large_and_named_by_their_corners(tmp_path):
    low = images_at(tmp_path / "low", (0, 0), size=(100, 64))
    assert windows_of(low, val_blocks=64, fold=(1, 2)) == ["s/0_0_0.tif", "s/0_50_0.tif"]
    whole = images_at(tmp_path / "whole", (0, 0), (0, 99), size=(60, 70))
    assert windows_of(whole, val_blocks=64, fold=(1, 2)) == ["s/0.tif", "s/1.tif"]
    folder = images_at(tmp_path / "high", (0, 0), size=(200, 100))
    names = [f"s/0_{top}_{left}.tif" for top in (0, 133, 67) for left in (0, 50)]
    assert windows_of(folder, val_blocks=64, fold=(1, 6)) == names  # six blocks
    (folder / "classes.csv").write_text("image,classes\ns/0,0\n")
    train, val = load_records(config(folder, val_blocks=64))
    assert [records.labeled(len(records) - 1) for records in (train, val)] == [("0",), ("0",)]


def test_a_block_is_of_one_coordinate_system_and_begins_at_the_first_image_of_it(tmp_path):
    beside = images_at(tmp_path / "beside", (0, 0), (-64, 0), (0, -64), (-64, -64))
    assert windows_of(beside, val_blocks=64, fold=(1, 4)) == [f"s/{number}.tif" for number in range(4)]
    other = images_at(tmp_path / "other", (0, 0), (0, 0, "EPSG:32634"))
    assert windows_of(other, val_blocks=64, fold=(1, 2)) == ["s/0.tif", "s/1.tif"]
    far = images_at(tmp_path / "far", (0, 0), (32, 0, "EPSG:32634"), (64, 0, "EPSG:32634"))
    assert windows_of(far, val_blocks=64, fold=(1, 3)) == ["s/0.tif", "s/1.tif", "s/2.tif"]
    dates = images_at(tmp_path / "dates", (0, 0), (0, 0))
    with pytest.raises(DataError, match="blocks of 64 pixels hold all images together; give a smaller number"):
        load_records(config(dates, val_blocks=64))


def test_blocks_beside_a_validation_split_are_one_line(tmp_path):
    for split in ("train", "val"):
        images_at(tmp_path / split, (0, 0))
    line = f"--val-blocks holds out a part of the training images, but {tmp_path} has the validation split val; leave"
    with pytest.raises(DataError, match=line):
        load_records(config(tmp_path))


def test_a_name_that_is_none_of_a_folder_has_no_blocks():
    line = "--val-blocks cuts images of a folder that have a place, but owner/name is no folder"
    with pytest.raises(DataError, match=line):
        load_records(config("owner/name"))


def test_a_block_is_no_smaller_than_a_crop(tmp_path):
    folder = images_at(tmp_path, (0, 0), size=(200, 200))
    assert len(windows_of(folder)) == 9
    assert len(windows_of(folder, crop_size=(32, 100))) == 4


def test_volumes_and_streams_have_no_blocks_and_no_neighbors():
    records = ListRecords([{"image": "", "target": "", "name": "a"}])
    records.metadata = Metadata(dims=3)
    stream = ListRecords([{"image": "", "target": "", "name": "a"}])
    stream.group_sizes = np.array([1])
    for each in (records, stream):
        with pytest.raises(DataError, match="--val-blocks cuts images with a place in the world, and these are none"):
            blocks.hold_out_blocks(each, DataConfig("x", val_blocks=64))
        with mock.patch.object(blocks, "grid_of_source", side_effect=AssertionError):
            assert describe_neighbors(each, each) == []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"val_blocks": 4096}, "--val-blocks: blocks of 4096 pixels hold all images together; give a smaller number"),
        ({"place": False}, "--val-blocks cuts images by their place, which --no-place leaves out; give --place"),
        ({"val_group": "a"}, "--val-blocks and --val-group: both say what is held out together"),
    ],
)
def test_blocks_that_cannot_be_are_one_line(tmp_path, settings, line):
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
def test_blocks_are_forty_of_all_images_but_neither_tiny_nor_huge(tmp_path, sizes, crop, side):
    path = write_raster(tmp_path / "a.tif", np.zeros((1, 4, 5), np.uint8))
    place = grid_of(str(path)).place
    assert blocks.block_side([Grid(place, size) for size in sizes], crop) == side


def test_images_without_place_have_no_blocks(tmp_path):
    for number in range(2):
        bands, mask = scene(number, channels=2)
        settings = {"crs": None, "transform": Affine.identity()}
        write_raster(tmp_path / "images" / f"{number}.tif", bands, **settings)
        write_raster(tmp_path / "masks" / f"{number}.tif", mask[None], **settings)
    with pytest.raises(DataError, match=r"0\.tif has no place in the world, by which blocks are cut"):
        load_records(config(tmp_path))
    with pytest.raises(DataError, match="shapes-000000 has no place"):
        load_records(config("shapes"))


def test_a_damaged_header_makes_no_blocks_without_end(tmp_path):
    write_scene(tmp_path)
    claimed = Grid(grid_of(str(tmp_path / "images" / "0.tif")).place, (200, 2**52))
    with (
        mock.patch.object(blocks, "grid_of_source", return_value=claimed),
        pytest.raises(DataError, match=r"0\.tif says that it has 200 x 4503599627370496 pixels, which are too many"),
    ):
        load_records(DataConfig(str(tmp_path), val_blocks=8))


def test_a_window_of_a_scene_reads_its_own_part_and_says_what_that_is(tmp_path):
    bands = np.arange(2 * 12 * 16, dtype=np.uint16).reshape(2, 12, 16)
    scene = str(write_raster(tmp_path / "a.tif", bands, nodata=0))
    box = Box(2, 9, 3, 15)
    window = SceneWindow(scene, "a", (12, 16), box, is_mask=False)
    assert read_header(window, "a") == ((7, 12), "uint16 x 2")
    assert np.array_equal(window.read(), np.moveaxis(bands[:, 2:9, 3:15], 0, 2))
    with window.open() as picture:
        assert picture.may_lack_data
        assert picture.decodes_windows
        assert picture.extent == (7, 12)
        assert np.array_equal(picture.read(1, 3), np.moveaxis(bands[:, 3:5, 3:15], 0, 2))
        assert np.array_equal(picture.read(1, 3, 4, 6), np.moveaxis(bands[:, 3:5, 7:9], 0, 2))
    with open_if_large(window) as picture:  # however small
        assert picture.size == (7, 12)
    Image.fromarray(bands[0].astype(np.uint8)).save(tmp_path / "m.png")
    mask = SceneWindow(str(tmp_path / "m.png"), "a", (12, 16), box, is_mask=True)
    assert np.array_equal(mask.read(), bands[0, 2:9, 3:15])
    with mask.open() as picture:
        assert not picture.may_lack_data
        assert not picture.decodes_windows
    with open_if_large(mask) as picture:
        assert picture is None
    other = replace(mask, size=(12, 18))
    with pytest.raises(DataError) as error:
        other.read()
    line = "a: image is 12 x 18, its mask 12 x 16; --val-blocks needs masks with a place, or of one size"
    assert str(error.value) == line
    with pytest.raises(DataError, match="a: image is 14 x 16, its mask 12 x 16"):
        replace(mask, size=(14, 16)).read()
    np.save(tmp_path / "f.npy", np.full((12, 16), np.nan))
    with pytest.raises(ImageError, match=r"^a: has pixels that are not numbers"):
        replace(window, source=str(tmp_path / "f.npy")).read()
    (tmp_path / "m.png").write_bytes(b"no picture")
    with pytest.raises(ImageError, match="cannot be read"):
        read_header(mask, "a")


def test_a_window_of_a_rendered_mask_is_its_own_part(tmp_path):
    ids = np.arange(12 * 16, dtype=np.uint8).reshape(12, 16)
    Image.fromarray(ids).save(tmp_path / "1.png")
    rendered = EvaluatedIds(str(tmp_path / "1.png"))
    window = SceneWindow(rendered, "a", (12, 16), Box(0, 2, 7, 13), is_mask=True)
    expected = [[7, 8, 255, 255, 11, 12], [23, 24, 25, 26, 27, 28]]
    assert window.read().tolist() == expected
    with window.open() as picture:
        assert picture.size == (2, 6)
        assert picture.read(0, 2).tolist() == expected
