"""Images and parts of them at another size."""

import numpy as np
import pytest

from data_utils.image_io.resize import resampling_weights, resize_image, same_proportions


def test_a_part_of_an_image_is_enlarged_to_the_size_of_the_image():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    part = resize_image(pixels[:5, :6], (6, 9), (0, 0, 4, 3))  # no pixel farther away contributes to it
    np.testing.assert_array_equal(resize_image(pixels, (6, 9), (0, 0, 4, 3)), part)


@pytest.mark.parametrize(
    ("image", "mask", "fits"),
    [
        ((734, 1100), (734, 1100), True),
        ((734, 1100), (408, 612), True),  # a real pair: 408.36 x 612
        ((100, 150), (34, 50), True),  # rounded up, and down
        ((100, 150), (34, 49), False),
        ((100, 100), (101, 100), True),
        ((512, 512), (514, 512), False),
        ((100, 100), (103, 100), False),
        ((10, 20), (20, 10), False),
        ((1000, 1500), (3, 5), True),
    ],
)
def test_proportions_agree_to_one_rounded_pixel(image, mask, fits):
    assert same_proportions(image, mask) is fits
    assert same_proportions(mask, image) is fits


@pytest.mark.parametrize("is_linear", [False, True])
@pytest.mark.parametrize("target", [16, 32, 64])
def test_a_straight_line_is_resampled_to_itself(target, is_linear):
    taps, weights = resampling_weights(32, target, is_linear=is_linear)
    line = (taps * weights).sum(axis=1)
    centers = (np.arange(target) + 0.5) * 32 / target - 0.5
    inside = slice(target // 8, -target // 8)  # the ends are repeated
    np.testing.assert_allclose(line[inside], centers[inside], atol=1e-12)
