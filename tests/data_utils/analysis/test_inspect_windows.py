"""A look at a large image in strips finds what a look at the whole would."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.inspections import inspect_image

from data_utils.image_io.rasters import Raster


def write_pair(folder: Path, mask: np.ndarray, suffix: str = ".tif") -> dict:
    """A record of a tiled TIFF and a mask of it."""
    image = np.zeros((*mask.shape[:2], 3), np.uint8)
    tifffile.imwrite(folder / "image.tif", image, photometric="rgb", tile=(32, 32))
    file = folder / f"mask{suffix}"
    if suffix == ".tif":
        tifffile.imwrite(file, mask, photometric="minisblack", tile=(32, 32))
    else:
        Image.fromarray(mask).save(file)
    return {"image": str(folder / "image.tif"), "target": str(file), "name": "a"}


def in_strips(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Have all TIFFs read in strips of 32 rows."""
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    monkeypatch.setattr("data_utils.image_io.windowed.STRIP_PIXELS", width * 32)


@pytest.fixture
def large_mask(tmp_path, monkeypatch):
    """A record of a mask of three values, the mask, and what a look at the whole finds; strips are read from now on."""
    mask = np.random.default_rng(0).choice(np.uint8([0, 0, 0, 5]), (160, 64))
    mask[150, 7] = 9
    record = write_pair(tmp_path, mask)
    whole = inspect_image(record)
    in_strips(monkeypatch, 64)
    return record, mask, whole


def test_a_mask_that_is_read_in_strips_is_as_when_read_whole(large_mask):
    record, _, whole = large_mask
    inspection = inspect_image(record, windows=True)
    assert inspection.size == whole.size
    assert inspection.mask_size == whole.mask_size
    assert inspection.kind == "numbers"
    assert inspection.pixels == whole.pixels
    assert inspection.mode == "uint8 x 3"


def test_no_more_of_a_large_image_and_its_mask_is_in_memory_than_a_strip(large_mask, monkeypatch):
    heights = []
    read = Raster.read

    def note(tiff: Raster, top: int, bottom: int, *columns: int) -> np.ndarray:
        heights.append(bottom - top)
        return read(tiff, top, bottom, *columns)

    monkeypatch.setattr(Raster, "read", note)
    inspect_image(large_mask[0], windows=True)
    assert max(heights) == 32


@pytest.mark.parametrize("value", [0, 5])
def test_places_of_a_class_are_spread_over_all_strips(large_mask, value):
    record, mask, _ = large_mask
    places = inspect_image(record, windows=True).class_locations[value]
    assert len(places) == 64
    assert (mask[tuple(places.T)] == value).all()
    assert places[:, 0].min() < 40
    assert places[:, 0].max() > 120


def test_the_place_of_a_single_pixel_is_found(large_mask):
    record, _, _ = large_mask
    assert inspect_image(record, windows=True).class_locations[9].tolist() == [[150, 7]]


def test_pixels_of_a_class_come_from_strips_by_how_many_these_hold(tmp_path, monkeypatch):
    mask = np.zeros((64, 64), np.uint8)
    mask[:32] = 5
    mask[40] = 5  # one row of the second strip
    record = write_pair(tmp_path, mask)
    in_strips(monkeypatch, 64)
    rows = inspect_image(record, windows=True).class_locations[5][:, 0]
    assert len(rows) == 64
    assert 0 < (rows == 40).sum() < 20


def write_color_pair(folder: Path, mask: np.ndarray) -> dict:
    """A record of a tiled TIFF and a tiled mask in color."""
    record = write_pair(folder, mask[:, :, 0])
    tifffile.imwrite(folder / "mask.tif", mask, photometric="rgb", tile=(32, 32))
    return record


@pytest.fixture
def color_mask(monkeypatch):
    """A mask of three strips, of which the second has one pixel in color."""
    in_strips(monkeypatch, 64)
    mask = np.zeros((96, 64, 3), np.uint8)
    mask[:32, :7] = 9
    mask[64:, :5] = 9
    mask[40, 50] = 200, 9, 9
    return mask


def test_strips_of_grey_in_a_color_mask_hold_colors(tmp_path, color_mask):
    inspection = inspect_image(write_color_pair(tmp_path, color_mask), windows=True)
    ground = 96 * 64 - 32 * 7 - 32 * 5 - 1
    assert inspection.kind == "colors"
    assert inspection.pixels == {(0, 0, 0): ground, (9, 9, 9): 32 * 12, (200, 9, 9): 1}


def test_places_of_colors_are_in_strips_of_grey_too(tmp_path, color_mask):
    inspection = inspect_image(write_color_pair(tmp_path, color_mask), windows=True)
    assert inspection.class_locations.keys() == inspection.pixels.keys()
    for value, places in inspection.class_locations.items():
        assert (color_mask[tuple(places.T)] == value).all()
    assert set(inspection.class_locations[9, 9, 9][:, 0] // 32) == {0, 2}
    assert set(inspection.class_locations[0, 0, 0][:, 0] // 32) == {0, 1, 2}


NUMBERS = np.arange(32 * 64).reshape(32, 64)


@pytest.fixture
def four_hundred_values(tmp_path, monkeypatch):
    """A record of a mask of two strips, each of which has two hundred values of its own."""
    in_strips(monkeypatch, 64)
    return write_pair(tmp_path, np.concatenate([NUMBERS % 200, 200 + NUMBERS % 200]).astype(np.uint16))


def test_values_are_too_many_over_all_strips(four_hundred_values):
    assert inspect_image(four_hundred_values, windows=True).kind == "too many mask values"


@pytest.fixture
def large_image(tmp_path, monkeypatch):
    """A record of an image of 64 x 96 and a mask, which is read in strips."""
    in_strips(monkeypatch, 64)
    return write_pair(tmp_path, np.zeros((64, 96), np.uint8))


def write_smaller_mask(record: dict, size: tuple[int, int]) -> None:
    tifffile.imwrite(record["target"], np.zeros(size, np.uint8), photometric="minisblack", tile=(32, 32))


def test_masks_of_half_the_size_are_read_in_windows(large_image):
    write_smaller_mask(large_image, (32, 48))
    inspection = inspect_image(large_image, windows=True)
    assert inspection.size == (64, 96)
    assert inspection.mask_size == (32, 48)


def test_masks_of_other_proportions_are_a_problem(large_image):
    write_smaller_mask(large_image, (32, 40))
    problem = inspect_image(large_image, windows=True)
    assert problem.kind == "mask and image differ in proportions"
    assert problem == inspect_image(large_image)
