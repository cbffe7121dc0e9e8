"""Masks on other grids than their images count where their coordinates say, as GDAL has it.

Modules: data_utils/image_io/places.py, data_utils/sources/places.py.
"""

import os
from types import SimpleNamespace

import numpy as np
import pytest
from rasterio.transform import Affine, from_origin
from rasterio.warp import Resampling, reproject
from support.rasters import NORTH_UP, UTM, class_config, scene, write_raster

from data_utils.analysis.checks import shifted_masks
from data_utils.config import DataConfig
from data_utils.image_io import places
from data_utils.image_io.formats import Box
from data_utils.image_io.places import Grid, Place, PlacedMask, on_grid, read_grid
from data_utils.image_io.reader import open_source, read_header, read_mask
from data_utils.mask_values import BEYOND_MASK
from data_utils.sources.load import load_records
from data_utils.sources.places import read_places
from data_utils.sources.records import ListRows, Records
from runtime.errors import DataError
from train_utils.check_data import check_data
from train_utils.dataset import load_dataset_info


def write_pairs(folder, transform, mask_of=lambda mask: mask, crs=UTM):
    """Three images, and masks on another grid."""
    for number in range(3):
        bands, mask = scene(number)
        write_raster(folder / "images" / f"{number}.tif", bands)
        write_raster(folder / "masks" / f"{number}.tif", mask_of(mask)[None], transform=transform, crs=crs)
    return folder


@pytest.mark.parametrize(
    ("transform", "size"),
    [
        (NORTH_UP @ Affine.scale(3), (15, 20)),  # coarser
        (NORTH_UP @ Affine.translation(-7, 4) @ Affine.scale(0.5), (120, 160)),  # finer, and larger than the image
        (NORTH_UP @ Affine.translation(9, 3) @ Affine.rotation(30), (30, 40)),  # turned, and smaller
    ],
)
def test_a_mask_on_another_grid_is_placed_as_gdal_places_it(tmp_path, transform, size):
    mask = np.random.default_rng(0).integers(0, 4, size).astype(np.uint8)
    write_pairs(tmp_path, transform, mask_of=lambda _: mask)
    record = next(iter(load_records(class_config(tmp_path))[0]))
    expected = np.full((40, 56), 255, np.uint8)
    reproject(
        mask,
        expected,
        src_transform=transform,
        src_crs=UTM,
        dst_transform=NORTH_UP,
        dst_crs=UTM,
        dst_nodata=255,
        resampling=Resampling.nearest,
        tolerance=0,
    )
    placed = read_mask(record["target"], "a")
    placed[placed == BEYOND_MASK] = 255
    assert (placed == expected).mean() > 0.998  # centers between two pixels
    info = load_dataset_info(class_config(tmp_path))
    assert info.reader.class_map.values == (0, 1, 2, 3)
    assert info.train.sizes.tolist() == [[40, 56]] * 2


@pytest.mark.parametrize("value", [255, 5])
def test_what_a_mask_does_not_cover_is_unknown_whatever_its_classes_are(tmp_path, value):
    half = np.zeros((40, 28), np.uint8)
    half[5:20, 5:20] = value
    write_pairs(tmp_path, NORTH_UP, mask_of=lambda _: half)
    write_raster(tmp_path / "masks" / "0.tif", half[None], transform=NORTH_UP @ Affine.translation(99, 0))  # beside it
    info = load_dataset_info(class_config(tmp_path))
    assert info.reader.class_map.values == (0, value)
    assert info.reader.class_map.ignore_value is None
    masks = [info.reader.read(record, (40, 56)).mask for split in (info.train, info.val) for record in split.records]
    covered = [mask[:, :28] for mask in masks if (mask != 255).any()]
    assert len(covered) == 2
    assert all(np.array_equal(mask, half > 0) for mask in covered)
    assert all((mask[:, 28:] == 255).all() for mask in masks)


@pytest.mark.parametrize("value", [-1, -9999, -32767, -32768])
def test_a_number_below_0_that_a_mask_holds_is_one_of_its_values(tmp_path, value):
    numbers = np.zeros((40, 56), np.int16)
    numbers[5:20] = 1
    numbers[20:] = value
    write_pairs(tmp_path, NORTH_UP @ Affine.translation(0, 1), mask_of=lambda _: numbers)
    assert load_dataset_info(class_config(tmp_path)).reader.class_map.values == (value, 0, 1)


@pytest.mark.parametrize(("task", "val_blocks"), [(None, None), ("objects", 20.0)])
def test_numbered_objects_on_another_grid_are_objects(tmp_path, task, val_blocks):
    for number in range(4):
        ids = np.zeros((80, 160), np.uint16)
        numbers = np.random.default_rng(number).permutation(np.arange(250, 270 + number))
        for index, value in enumerate(numbers):
            row, column = divmod(index, 10)
            ids[20 * row + 2 : 20 * row + 18, 10 * column + 1 : 10 * column + 9] = value
        write_raster(tmp_path / "images" / f"{number}.tif", np.full((1, 40, 96), 7, np.uint8))
        write_raster(
            tmp_path / "masks" / f"{number}.tif", ids[None], transform=NORTH_UP @ Affine.scale(0.5), nodata=None
        )
    info = load_dataset_info(DataConfig(str(tmp_path), task=task, val_blocks=val_blocks))
    assert info.config.task == "objects"
    for record in info.train.records:
        size = read_header(record["image"], "a")[0]
        target = info.reader.read(record, size)
        values = read_mask(record["target"], "a")
        is_known = np.indices(size)[1] < 80 if val_blocks is None else target.mask != 255
        assert (target.mask[~is_known] == 255).all()
        assert (target.ids[is_known] == values[is_known]).all()
        assert (target.ids == 255).any() == ((values == 255) & is_known).any()


def test_the_grid_of_a_file_that_was_written_again_is_its_new_one(tmp_path):
    path = tmp_path / "a.tif"
    for time, size in enumerate(((4, 5), (6, 7))):
        write_raster(path, np.zeros((1, *size), np.uint8))
        os.utime(path, (time, time))
        assert read_grid(str(path)).size == size


def test_centers_on_the_border_of_two_pixels_belong_to_the_second():
    size = (30, 40)
    place = Place((0.1, 0.0, 0.0, 0.0, -0.1, 0.0), None, ())
    shifted = place._replace(transform=(0.1, 0.0, 0.05, 0.0, -0.1, -0.05))
    values = np.arange(30 * 40, dtype=np.uint16).reshape(size)
    placed = PlacedMask(values, "a", Grid(shifted, size), Grid(place, size)).render()
    assert np.array_equal(placed, values)


def test_a_mask_without_crs_on_the_grid_of_its_image_stays(tmp_path):
    image = read_grid(str(write_raster(tmp_path / "image.tif", np.zeros((1, 8, 9), np.uint8))))
    plain = str(write_raster(tmp_path / "plain.tif", np.ones((1, 8, 9), np.uint8), crs=None))
    assert on_grid(plain, image, "a") == plain


def test_windows_of_a_mask_on_another_grid_are_those_of_the_whole(tmp_path, monkeypatch):
    """The mask has pixels of twice the size, two to the left and one below those of its image."""
    grid = read_grid(str(write_raster(tmp_path / "image.tif", np.zeros((5, 8, 9), np.uint16))))
    values = np.arange(1, 31, dtype=np.uint8).reshape(1, 5, 6)
    transform = NORTH_UP * Affine.translation(-2, 1) * Affine.scale(2)
    mask = on_grid(str(write_raster(tmp_path / "mask.tif", values, transform=transform)), grid, "m")
    with open_source(mask) as picture:
        whole = picture.pixels()
        monkeypatch.setattr(places, "ROWS", 3)
        assert np.array_equal(picture.pixels(picture.rows(0, 8)), whole)
        assert np.array_equal(picture.pixels(Box(2, 7, 3, 8)), whole[2:7, 3:8])
    assert np.array_equal(mask.render_part((2, 7), (3, 8)), whole.reshape(8, 9)[2:7, 3:8])


SHIFTS = {
    "a": (0.0, 0.0),
    "b": (0.3, -0.1),
    "c": (1.0, 2.0),
    "d": (0.008, 0.0),
    "n": (-0.3, -0.2),
    "down": (0.0, 0.2),
    "right": (0.012, 0.0),
}


def test_masks_that_are_shifted_by_a_part_of_a_pixel_are_warned_of(tmp_path):
    image = write_raster(tmp_path / "image.tif", np.zeros((5, 8, 9), np.uint16))
    places = {name: ((8, 9), NORTH_UP * Affine.translation(*shift)) for name, shift in SHIFTS.items()}
    places["coarser"] = ((4, 5), from_origin(500_003, 5_000_000, 20, 20))
    rows = []
    for name, (size, transform) in places.items():
        mask = write_raster(tmp_path / f"{name}.tif", np.zeros((1, *size), np.uint8), transform=transform)
        rows.append({"image": str(image), "target": str(mask), "name": name})
    records = Records(ListRows(rows))
    placed = read_places(records, DataConfig())
    (line,) = shifted_masks(SimpleNamespace(records=[placed]))
    assert line.startswith("4 masks are shifted against their images")
    assert "b by +0.30 to the right and -0.10" in line
    assert not [*shifted_masks(SimpleNamespace(records=[records]))]
    assert [*shifted_masks(SimpleNamespace(records=[records, placed]))] == [line]


def test_a_mask_in_another_crs_is_a_one_line_error(tmp_path):
    write_pairs(tmp_path, NORTH_UP, crs="EPSG:32634")
    with pytest.raises(DataError, match=r"mask is in EPSG:32634, its image in EPSG:32633.*-t_srs EPSG:32633"):
        load_dataset_info(class_config(tmp_path))
    report, problems = check_data(class_config(tmp_path))
    assert problems == 3
    assert "EPSG:32634" in report


def test_a_mask_of_colors_stays_on_the_grid_of_its_image(tmp_path):
    colors = np.zeros((3, 4, 5), np.uint8)
    colors[0, 0, 0] = 9
    mask = str(write_raster(tmp_path / "m.tif", colors, photometric="rgb"))
    shifted = NORTH_UP * Affine.translation(1, 0)
    image = read_grid(str(write_raster(tmp_path / "a.tif", np.zeros((1, 4, 5), np.uint8), transform=shifted)))
    assert on_grid(mask, read_grid(mask), "a") == mask
    with pytest.raises(DataError, match=r"^a: is a color mask on another grid than its image; store it as numbers$"):
        on_grid(mask, image, "a").render()


def test_masks_of_classes_that_overlap_are_placed_each_by_its_own_file(tmp_path):
    """One class on the grid of the image; the other in pixels of half the side, from row 2 and column 3 on."""
    fine = NORTH_UP @ Affine.translation(3, 2) @ Affine.scale(0.5)
    masks = [scene(number)[1] for number in range(3)]
    for number, mask in enumerate(masks):
        write_raster(tmp_path / "images" / f"{number}.tif", scene(number)[0])
        write_raster(tmp_path / "masks" / "coarse" / f"{number}.tif", mask[None])
        write_raster(
            tmp_path / "masks" / "fine" / f"{number}.tif", mask.repeat(2, 0).repeat(2, 1)[None], transform=fine
        )
    info = load_dataset_info(DataConfig(str(tmp_path)))
    for record in info.train.records:
        mask = masks[int(record["name"][0])]
        target = info.reader.read(record, mask.shape)
        assert np.array_equal(target.truth & 1, mask)
        assert np.array_equal(target.truth[2:, 3:] >> 1, mask[:-2, :-3])
        assert (target.known[2:, 3:] == 3).all()
        assert (target.known[:2] == 1).all()
        assert (target.known[:, :3] == 1).all()
