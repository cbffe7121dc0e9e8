"""A look at a large image in strips finds what a look at the whole would."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from data_utils.analysis.inspect_images import inspect_image
from data_utils.analysis.inspect_windows import inspect_in_windows


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


def test_a_mask_that_is_read_in_strips_is_as_when_read_whole_and_its_pixels_are_where_they_were(tmp_path, monkeypatch):
    mask = np.random.default_rng(0).choice(np.uint8([0, 0, 0, 5]), (160, 64))
    mask[150, 7] = 9
    record = write_pair(tmp_path, mask)
    whole = inspect_image(record)
    in_strips(monkeypatch, 64)
    inspection = inspect_in_windows(record)
    assert (inspection.size, inspection.mask_size, inspection.kind, inspection.pixels) == (
        whole.size,
        whole.mask_size,
        "numbers",
        whole.pixels,
    )
    assert inspection.mode == "uint8 x 3"
    assert inspection.class_locations[9].tolist() == [[150, 7]]
    for value in (0, 5):
        pixels = inspection.class_locations[value]
        assert len(pixels) == 64
        assert (mask[tuple(pixels.T)] == value).all()
        assert pixels[:, 0].min() < 40
        assert pixels[:, 0].max() > 120


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


def test_strips_of_grey_in_a_color_mask_hold_colors(tmp_path, monkeypatch):
    mask = np.zeros((96, 64, 3), np.uint8)
    mask[:32, :7] = 9
    mask[64:, :5] = 9
    mask[40, 50] = 200, 9, 9
    in_strips(monkeypatch, 64)
    inspection = inspect_in_windows(write_color_pair(tmp_path, mask))
    ground = 96 * 64 - 32 * 7 - 32 * 5 - 1
    assert (inspection.kind, inspection.pixels) == ("colors", {(0, 0, 0): ground, (9, 9, 9): 32 * 12, (200, 9, 9): 1})
    assert inspection.class_locations.keys() == inspection.pixels.keys()
    for value, pixels in inspection.class_locations.items():
        assert (mask[tuple(pixels.T)] == value).all()
    assert set(inspection.class_locations[9, 9, 9][:, 0] // 32) == {0, 2}
    assert set(inspection.class_locations[0, 0, 0][:, 0] // 32) == {0, 1, 2}  # of grey strips and of the one in color
    mask[40, 50] = 9
    assert inspect_in_windows(write_color_pair(tmp_path, mask)).kind == "greys"
    mask[:32] = np.arange(32 * 64).reshape(32, 64, 1) % 200
    mask[32:64] = (np.arange(32 * 64).reshape(32, 64, 1) % 100) * (1, 2, 0)
    assert inspect_in_windows(write_color_pair(tmp_path, mask)).kind == "too many mask values"


def test_values_are_too_many_over_all_strips_and_numbers_of_objects_have_places(tmp_path, monkeypatch):
    mask = np.zeros((64, 64), np.uint16)
    mask[:32] = np.arange(32 * 64).reshape(32, 64) % 200
    mask[32:] = 200 + np.arange(32 * 64).reshape(32, 64) % 200
    in_strips(monkeypatch, 64)
    record = write_pair(tmp_path, mask)
    assert inspect_in_windows(record).kind == "too many mask values"
    inspection = inspect_in_windows(record, has_classes=False)
    assert len(inspection.pixels) == 400
    assert set(inspection.class_locations) == set(range(400))
    mask[:32] = np.arange(32 * 64).reshape(32, 64) % 300
    inspection = inspect_in_windows(write_pair(tmp_path, mask), has_classes=False)
    objects = inspection.class_locations[1]
    assert len(objects) == 64
    assert mask[tuple(objects.T)].all()
    assert len(set(mask[tuple(objects.T)].tolist())) > 9
    assert not mask[tuple(inspection.class_locations[0].T)].any()


def test_masks_that_are_resized_are_read_in_windows_and_others_are_problems(tmp_path, monkeypatch):
    in_strips(monkeypatch, 64)
    record = write_pair(tmp_path, np.zeros((64, 96), np.uint8))
    tifffile.imwrite(tmp_path / "mask.tif", np.zeros((32, 48), np.uint8), photometric="minisblack", tile=(32, 32))
    inspection = inspect_in_windows(record)
    assert (inspection.size, inspection.mask_size) == ((64, 96), (32, 48))
    tifffile.imwrite(tmp_path / "mask.tif", np.zeros((32, 40), np.uint8), photometric="minisblack", tile=(32, 32))
    problem = inspect_in_windows(record)
    assert problem.kind == "mask and image differ in proportions"
    assert problem == inspect_image(record)
    record["target"] = {"bytes": b"x", "path": None}  # in memory: it is read whole
    assert inspect_in_windows(record).kind == "mask cannot be read"


def test_images_that_are_small_and_masks_in_memory_may_number_many_objects(tmp_path):
    record = write_pair(tmp_path, np.arange(400, dtype=np.uint16).reshape(20, 20))
    assert inspect_in_windows(record).kind == "too many mask values"
    assert len(inspect_in_windows(record, has_classes=False).pixels) == 400


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG"])
@pytest.mark.parametrize("values", [2, 3])
def test_a_large_jpeg_of_three_values_has_invented_some(tmp_path, monkeypatch, suffix, values):
    mask = np.repeat(np.uint8([0, 255, 128, 128]), 16)[:, None].repeat(64, axis=1)
    if values == 2:
        mask[mask == 128] = 255
    record = write_pair(tmp_path, mask, ".png")
    record["target"] = str(tmp_path / f"mask{suffix}")
    Image.fromarray(mask).save(record["target"], "jpeg", quality=100)
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    assert inspect_in_windows(record, has_classes=False).pixels == inspect_image(record, has_classes=False).pixels
    inspection = inspect_in_windows(record)
    assert getattr(inspection, "kind", "") == ("lossy mask" if values == 3 else "numbers")


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


def test_a_mask_that_is_given_by_its_path_is_read_in_windows(tmp_path, monkeypatch):
    record = write_pair(tmp_path, np.zeros((64, 64), np.uint8))
    record["target"] = {"path": record["target"], "bytes": None}
    in_strips(monkeypatch, 64)
    assert [*inspect_in_windows(record).class_locations] == [0]
