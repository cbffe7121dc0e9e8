"""Images and parts of them at another size."""

from unittest import mock

import numpy as np
import pytest

from data_utils.image_io.resize import resize_image, resize_rows, resize_window, same_proportions


def test_rows_that_end_within_a_pixel_are_resized_as_the_whole_image_is():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    whole = resize_image(pixels, (6, 4), (0, 0, 8.5, 6))
    rows = resize_rows(lambda top, bottom: pixels[top:bottom], (6, 8.5), (6, 4), 2, 5)
    np.testing.assert_array_equal(rows, whole[2:5])


def test_no_more_rows_are_read_than_a_resized_row_depends_on():
    read = mock.Mock(return_value=np.zeros((8, 9, 1), np.float32))
    resize_rows(read, (20, 9), (10, 9), 4, 5)
    read.assert_called_once_with(5, 13)


def test_rows_of_fractions_that_are_resized_are_of_32_bits():
    pixels = np.random.default_rng(0).random((6, 9, 2), dtype=np.float32)
    assert resize_rows(lambda top, bottom: pixels[top:bottom], (6, 9), (4, 5), 1, 3).dtype == np.float32


def test_a_part_of_an_image_at_its_own_size_is_that_part():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    np.testing.assert_array_equal(resize_image(pixels, (4, 5), (0, 0, 5, 4)), pixels[:4, :5])


def test_a_part_of_an_image_is_enlarged_to_the_size_of_the_image():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    part = resize_image(pixels[:5, :6], (6, 9), (0, 0, 4, 3))  # no pixel farther away contributes to it
    np.testing.assert_array_equal(resize_image(pixels, (6, 9), (0, 0, 4, 3)), part)


def test_no_more_of_an_image_at_its_own_size_is_read_than_the_window():
    read = mock.Mock(return_value=np.zeros((3, 6, 1), np.uint8))
    resize_window(read, (10, 12), (10, 12), ((2, 5), (3, 9)))
    read.assert_called_once_with(2, 5, 3, 9)


@pytest.mark.parametrize(
    ("image", "mask", "fits"),
    [
        ((734, 1100), (734, 1100), True),
        ((734, 1100), (408, 612), True),  # a real pair: 408.36 x 612
        ((408, 612), (734, 1100), True),
        ((100, 150), (33, 50), True),
        ((100, 150), (34, 50), True),  # rounded up, and down
        ((100, 151), (33, 50), True),
        ((100, 150), (34, 49), False),
        ((100, 150), (33, 51), True),
        ((100, 150), (35, 50), False),
        ((100, 3000), (13, 375), True),
        ((100, 100), (101, 100), True),
        ((512, 512), (514, 512), False),
        ((40, 2000), (40, 2040), False),
        ((100, 10), (98, 10), False),
        ((512, 512), (514, 514), True),
        ((100, 100), (103, 100), False),
        ((10, 20), (20, 10), False),
        ((1000, 1500), (3, 5), True),
        ((1000, 1500), (3, 8), False),
    ],
)
def test_proportions_agree_to_one_rounded_pixel(image, mask, fits):
    assert same_proportions(image, mask) is fits
    assert same_proportions(mask, image) is fits
