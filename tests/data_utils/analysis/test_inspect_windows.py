"""A look at a large image in strips finds what a look at the whole would."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from data_utils.analysis.inspect_images import inspect_image
from data_utils.analysis.inspect_windows import inspect_in_windows
from data_utils.image_io.windowed import WindowedTiff


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
    inspection = inspect_in_windows(record)
    assert inspection.size == whole.size
    assert inspection.mask_size == whole.mask_size
    assert inspection.kind == "numbers"
    assert inspection.pixels == whole.pixels
    assert inspection.mode == "uint8 x 3"


def test_no_more_of_a_large_image_and_its_mask_is_in_memory_than_a_strip(large_mask, monkeypatch):
    heights = []
    read = WindowedTiff.read

    def note(tiff: WindowedTiff, top: int, bottom: int, *columns: int) -> np.ndarray:
        heights.append(bottom - top)
        return read(tiff, top, bottom, *columns)

    monkeypatch.setattr(WindowedTiff, "read", note)
    inspect_in_windows(large_mask[0])
    assert max(heights) == 32


@pytest.mark.parametrize("value", [0, 5])
def test_places_of_a_class_are_spread_over_all_strips(large_mask, value):
    record, mask, _ = large_mask
    places = inspect_in_windows(record).class_locations[value]
    assert len(places) == 64
    assert (mask[tuple(places.T)] == value).all()
    assert places[:, 0].min() < 40
    assert places[:, 0].max() > 120


def test_the_place_of_a_single_pixel_is_found(large_mask):
    record, _, _ = large_mask
    assert inspect_in_windows(record).class_locations[9].tolist() == [[150, 7]]


def test_pixels_of_a_class_come_from_strips_by_how_many_these_hold(tmp_path, monkeypatch):
    mask = np.zeros((64, 64), np.uint8)
    mask[:32] = 5
    mask[40] = 5  # one row of the second strip
    record = write_pair(tmp_path, mask)
    in_strips(monkeypatch, 64)
    rows = inspect_in_windows(record).class_locations[5][:, 0]
    assert len(rows) == 64
    assert 0 < (rows == 40).sum() < 20


def test_a_strip_weighs_as_many_pixels_as_it_holds_however_many_are_sampled(tmp_path, monkeypatch):
    mask = np.zeros((96, 64), np.uint8)
    mask[0] = 5  # 64 pixels, all of them sampled
    mask[40, :20] = 5
    record = write_pair(tmp_path, mask)
    in_strips(monkeypatch, 64)
    rows = inspect_in_windows(record).class_locations[5][:, 0]
    assert len(rows) == 64
    assert (rows == 40).sum() >= 12


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
    inspection = inspect_in_windows(write_color_pair(tmp_path, color_mask))
    ground = 96 * 64 - 32 * 7 - 32 * 5 - 1
    assert inspection.kind == "colors"
    assert inspection.pixels == {(0, 0, 0): ground, (9, 9, 9): 32 * 12, (200, 9, 9): 1}


def test_places_of_colors_are_in_strips_of_grey_too(tmp_path, color_mask):
    inspection = inspect_in_windows(write_color_pair(tmp_path, color_mask))
    assert inspection.class_locations.keys() == inspection.pixels.keys()
    for value, places in inspection.class_locations.items():
        assert (color_mask[tuple(places.T)] == value).all()
    assert set(inspection.class_locations[9, 9, 9][:, 0] // 32) == {0, 2}
    assert set(inspection.class_locations[0, 0, 0][:, 0] // 32) == {0, 1, 2}


def test_strips_of_grey_alone_hold_greys(tmp_path, color_mask):
    color_mask[40, 50] = 9
    assert inspect_in_windows(write_color_pair(tmp_path, color_mask)).kind == "greys"


def test_values_of_grey_and_of_colors_are_too_many_together(tmp_path, color_mask):
    numbers = np.arange(32 * 64).reshape(32, 64, 1)
    color_mask[:32] = numbers % 200
    color_mask[32:64] = (numbers % 100) * (1, 2, 0)
    assert inspect_in_windows(write_color_pair(tmp_path, color_mask)).kind == "too many mask values"


NUMBERS = np.arange(32 * 64).reshape(32, 64)


@pytest.fixture
def four_hundred_values(tmp_path, monkeypatch):
    """A record of a mask of two strips, each of which has two hundred values of its own."""
    in_strips(monkeypatch, 64)
    return write_pair(tmp_path, np.concatenate([NUMBERS % 200, 200 + NUMBERS % 200]).astype(np.uint16))


def test_values_are_too_many_over_all_strips(four_hundred_values):
    assert inspect_in_windows(four_hundred_values).kind == "too many mask values"


def test_values_that_are_no_classes_may_be_many(four_hundred_values):
    inspection = inspect_in_windows(four_hundred_values, has_classes=False)
    assert len(inspection.pixels) == 400
    assert set(inspection.class_locations) == set(range(400))


def test_each_of_255_values_has_places_of_its_own(tmp_path, monkeypatch):
    record = write_pair(tmp_path, np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) % 255)
    in_strips(monkeypatch, 64)
    assert sorted(inspect_in_windows(record).class_locations) == [*range(255)]


def test_objects_of_more_values_than_classes_have_places_together(tmp_path, monkeypatch):
    in_strips(monkeypatch, 64)
    mask = np.concatenate([NUMBERS % 300, 200 + NUMBERS % 200]).astype(np.uint16)
    locations = inspect_in_windows(write_pair(tmp_path, mask), has_classes=False).class_locations
    numbers = mask[tuple(locations[1].T)]
    assert len(numbers) == 64
    assert numbers.all()
    assert len(set(numbers.tolist())) > 9
    assert not mask[tuple(locations[0].T)].any()


@pytest.fixture
def large_image(tmp_path, monkeypatch):
    """A record of an image of 64 x 96 and a mask, which is read in strips."""
    in_strips(monkeypatch, 64)
    return write_pair(tmp_path, np.zeros((64, 96), np.uint8))


def write_smaller_mask(record: dict, size: tuple[int, int]) -> None:
    tifffile.imwrite(record["target"], np.zeros(size, np.uint8), photometric="minisblack", tile=(32, 32))


def test_masks_of_half_the_size_are_read_in_windows(large_image):
    write_smaller_mask(large_image, (32, 48))
    inspection = inspect_in_windows(large_image)
    assert inspection.size == (64, 96)
    assert inspection.mask_size == (32, 48)


def test_masks_of_other_proportions_are_a_problem(large_image):
    write_smaller_mask(large_image, (32, 40))
    problem = inspect_in_windows(large_image)
    assert problem.kind == "mask and image differ in proportions"
    assert problem == inspect_image(large_image)


def test_masks_in_memory_are_read_as_a_whole(large_image):
    large_image["target"] = b"x"
    assert inspect_in_windows(large_image).kind == "mask cannot be read"


def test_small_masks_may_number_many_objects(tmp_path):
    record = write_pair(tmp_path, np.arange(400, dtype=np.uint16).reshape(20, 20))
    assert inspect_in_windows(record).kind == "too many mask values"
    assert len(inspect_in_windows(record, has_classes=False).pixels) == 400


def write_jpeg_pair(folder: Path, suffix: str, rows: list[int]) -> dict:
    """A record of an image and a mask of JPEG, whose rows, sixteen each, have these values."""
    mask = np.repeat(np.uint8(rows), 16)[:, None].repeat(64, axis=1)
    record = write_pair(folder, mask, ".png")
    record["target"] = str(folder / f"mask{suffix}")
    Image.fromarray(mask).save(record["target"], "jpeg", quality=100)
    return record


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG"])
@pytest.mark.parametrize(
    ("rows", "kind"),
    [([0, 255, 255, 255], "numbers"), ([0, 255, 128, 128], "lossy mask")],
    ids=["two values", "three values"],
)
def test_a_large_jpeg_of_three_values_has_invented_some(tmp_path, monkeypatch, suffix, rows, kind):
    record = write_jpeg_pair(tmp_path, suffix, rows)
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    assert inspect_in_windows(record).kind == kind


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG"])
@pytest.mark.parametrize("rows", [[0, 255, 255, 255], [0, 255, 128, 128]], ids=["two values", "three values"])
def test_a_large_jpeg_has_the_pixels_of_a_small_one(tmp_path, monkeypatch, suffix, rows):
    record = write_jpeg_pair(tmp_path, suffix, rows)
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    assert inspect_in_windows(record, has_classes=False).pixels == inspect_image(record, has_classes=False).pixels


def test_pixels_of_a_class_are_sampled_to_the_last_and_each_once(tmp_path, monkeypatch):
    mask = np.zeros((64, 64), np.uint8)
    mask[20, :30] = mask[50, :20] = 7
    in_strips(monkeypatch, 64)
    locations = inspect_in_windows(write_pair(tmp_path, mask)).class_locations
    assert sorted(map(tuple, locations[7].tolist())) == sorted(
        zip(*map(np.ndarray.tolist, np.nonzero(mask)), strict=True)
    )
    assert locations[0][:, 0].max() >= 60


def test_objects_that_leave_no_background_in_a_strip_have_places(tmp_path, monkeypatch):
    mask = 1 + np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    in_strips(monkeypatch, 64)
    inspection = inspect_in_windows(write_pair(tmp_path, mask), has_classes=False)
    assert [*inspection.class_locations] == [1]
    assert len(inspection.class_locations[1]) == 64
