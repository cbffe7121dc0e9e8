"""Mean and standard deviation of training images: constant channels, and grey images among those in color."""

import numpy as np
import pytest

from data_utils.analysis.normalization import channel_statistics, channel_sums
from runtime.errors import DataError


def test_a_constant_channel_is_divided_by_one():
    image = np.zeros((4, 5, 2), np.uint8)
    image[..., 0] = 7
    image[:2, :, 1] = 10
    mean, std = channel_statistics([channel_sums(image)])
    assert mean == (7, 5) and std == (1, 5)


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
