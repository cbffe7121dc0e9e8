"""Images and parts of them at another size."""

import numpy as np
import pytest

from data_utils.image_io.resize import resize_image, same_proportions


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
