"""Mean and standard deviation of training images: which of them are measured, and grey ones among those in color."""

import numpy as np
import pytest
import tifffile
from support.inspections import PICTURE
from support.rasters import write_raster

from data_utils.analysis import normalization as normalization_module
from data_utils.analysis.normalization import (
    channel_statistics,
    channel_sums,
    measure_normalization,
    read_sample,
)
from data_utils.config import DataConfig
from data_utils.sources.records import ListRecords
from runtime.errors import DataError


def test_a_constant_channel_is_divided_by_one():
    image = np.zeros((4, 5, 2), np.uint8)
    image[..., 0] = 7
    image[:2, :, 1] = 10
    mean, std = channel_statistics([channel_sums(image)])
    assert mean == (7, 5)
    assert std == (1, 5)


@pytest.mark.parametrize("corner", [0, 52])
def test_places_without_data_in_one_window_of_a_large_image_do_not_count(tmp_path, monkeypatch, corner):
    pixels = np.full((1, 60, 60), 7, np.uint8)
    pixels[0, corner : corner + 8, corner : corner + 8] = 99
    path = write_raster(tmp_path / "a.tif", pixels, nodata=99, tiled=True, blockxsize=16, blockysize=16)
    monkeypatch.setattr("data_utils.analysis.normalization.SIDE", 16)
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    sample = read_sample(str(path), "a")
    assert len(sample) > 60
    assert channel_statistics([channel_sums(sample)]) == ((7,), (1,))
    assert channel_sums(sample).pixel_type == "uint8"


def test_a_channel_without_data_has_the_mean_0_and_is_divided_by_one():
    image = np.ma.MaskedArray(np.full((2, 2, 2), 7, np.uint8), [[[False, True]] * 2] * 2)
    assert channel_statistics([channel_sums(image)]) == ((7, 0), (1, 1))


def test_a_grey_image_among_color_images_counts_in_every_channel():
    color = np.zeros((1, 1, 3), np.uint8)
    color[0, 0] = 10, 20, 30
    grey = np.full((1, 3, 1), 50, np.uint8)
    mean, std = channel_statistics([channel_sums(color), channel_sums(grey)])
    assert mean == (40, 42.5, 45)
    assert std == pytest.approx((300**0.5, 168.75**0.5, 75**0.5))


def test_other_numbers_of_channels_are_an_error_unless_they_are_skipped():
    images = [np.full((2, 2, channels), channels, np.uint8) for channels in (4, 3, 3)]
    sums = [channel_sums(image) for image in images]
    with pytest.raises(DataError, match="3 and 4 channels"):
        channel_statistics(sums)
    assert channel_statistics(sums, skip=True) == ((3, 3, 3), (1, 1, 1))


def test_a_large_image_is_measured_on_windows_from_its_first_to_its_last_row_and_column(tmp_path, monkeypatch):
    pixels = np.arange(90 * 70, dtype=np.uint16).reshape(90, 70)
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="minisblack", tile=(16, 16))
    monkeypatch.setattr(normalization_module, "SIDE", 16)
    assert read_sample(str(tmp_path / "a.tif"), "a").shape == (90, 70, 1)  # it is small
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE_IMAGE_PIXELS", 100)
    sample = read_sample(str(tmp_path / "a.tif"), "a")
    assert sample.shape == (16 * 16, 16, 1)
    windows = sample.reshape(4, 4, 16, 16)
    tops = [int(window[0, 0]) // 70 for window in windows[:, 0]]
    lefts = [int(window[0, 0]) % 70 for window in windows[0]]
    assert tops == [0, 24, 49, 74]
    assert lefts == [0, 18, 36, 54]
    assert windows[-1, -1, -1, -1] == pixels[-1, -1]


@pytest.fixture
def measured_images(monkeypatch):
    """Which of 200 images are measured, with a seed and without bad images."""
    records = ListRecords([{"image": np.full((1, 1), i, np.uint8), "target": PICTURE, "name": "a"} for i in range(200)])

    def measure(seed: int, bad: tuple[int, ...] = ()) -> set[int]:
        indices: list[int] = []

        def noted_sums(image: np.ndarray):
            indices.append(image.item())
            return channel_sums(image)

        monkeypatch.setattr(normalization_module, "channel_sums", noted_sums)
        measure_normalization(records, DataConfig(seed=seed), bad)
        assert len(set(indices)) == len(indices)
        return set(indices)

    return measure


def test_128_images_that_the_seed_draws_are_measured(measured_images):
    assert len(measured_images(seed=0)) == 128
    assert measured_images(seed=0) == measured_images(seed=0)
    assert measured_images(seed=0) != measured_images(seed=1)


def test_bad_images_are_not_measured(measured_images):
    images = measured_images(seed=0)
    bad = (min(images), max(images))
    assert measured_images(seed=0, bad=bad) == images - set(bad)


def test_an_image_that_cannot_be_measured_is_left_out_where_bad_ones_are_skipped():
    images = [np.full((2, 2, channels), channels, np.uint8) for channels in (3, 4, 3)]
    records = ListRecords([{"image": image, "target": PICTURE, "name": "a"} for image in images])
    assert measure_normalization(records, DataConfig(on_bad_sample="skip"), ()).mean == (3, 3, 3)
    bad = np.full((2, 2), np.nan, np.float32)
    records = ListRecords([{"image": image, "target": PICTURE, "name": "a"} for image in (bad, np.ones((2, 2)))])
    assert measure_normalization(records, DataConfig(on_bad_sample="skip"), ()).mean == (1,)
    with pytest.raises(DataError, match="a: has pixels that are not numbers"):
        measure_normalization(records, DataConfig(), ())
