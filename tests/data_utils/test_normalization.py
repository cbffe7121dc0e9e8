"""Mean and standard deviation of training images: constant channels, and grey images among those in color."""

import numpy as np
import pytest
from rasters import write_raster

from data_utils.analysis.normalization import channel_statistics, channel_sums, read_sample
from runtime.errors import DataError


def test_a_constant_channel_is_divided_by_one():
    image = np.zeros((4, 5, 2), np.uint8)
    image[..., 0] = 7
    image[:2, :, 1] = 10
    mean, std = channel_statistics([channel_sums(image)])
    assert mean == (7, 5) and std == (1, 5)


@pytest.mark.parametrize("corner", [0, 52])
def test_places_without_data_in_one_window_of_a_large_image_do_not_count(tmp_path, monkeypatch, corner):
    pixels = np.full((1, 60, 60), 7, np.uint8)
    pixels[0, corner : corner + 8, corner : corner + 8] = 0
    path = write_raster(tmp_path / "a.tif", pixels, nodata=0, tiled=True, blockxsize=16, blockysize=16)
    monkeypatch.setattr("data_utils.analysis.normalization.SIDE", 16)
    monkeypatch.setattr("data_utils.image_io.windowed.LARGE", 100)
    sample = read_sample(str(path), "a")
    assert len(sample) > 60 and channel_statistics([channel_sums(sample)]) == ((7,), (1,))


def test_a_grey_image_among_color_images_counts_in_every_channel():
    color = np.zeros((1, 1, 3), np.uint8)
    color[0, 0] = 10, 20, 30
    grey = np.full((1, 3, 1), 50, np.uint8)
    mean, std = channel_statistics([channel_sums(color), channel_sums(grey)])
    assert mean == (40, 42.5, 45)
    assert std == pytest.approx((300**0.5, 168.75**0.5, 75**0.5))


def test_other_numbers_of_channels_are_an_error_unless_they_are_skipped():
    images = [np.full((2, 2, channels), channels, np.uint8) for channels in (3, 3, 4)]
    sums = [channel_sums(image) for image in images]
    with pytest.raises(DataError, match="3 and 4 channels"):
        channel_statistics(sums)
    assert channel_statistics(sums, skip=True) == ((3, 3, 3), (1, 1, 1))
