"""Points drawn on an image: discs, rings and the lines between them.

Module: data_utils/visualize_points.py.
"""

import numpy as np
import pytest

from data_utils.visualize_points import enlarge_picture, point_colors, render_points

FACTOR = 6  # an image of 80 columns is shown in 480
PREDICTED = np.array([[20.0, 30.0], [40.0, 60.0]])
TRUE = np.array([[20.0, 50.0], [10.0, 10.0]])
IS_FIRST = np.array([True, False])


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    """A black image of 60 x 80 on which the first of two points was found and is true."""
    return render_points(np.zeros((60, 80), np.uint8), PREDICTED, IS_FIRST, TRUE, IS_FIRST)


def colored(picture: np.ndarray, point: int) -> np.ndarray:
    """Whether a pixel has the color of this point."""
    return (picture == point_colors(2)[point]).all(axis=2)


def test_a_small_image_with_points_is_enlarged(picture):
    assert picture.shape == (60 * FACTOR, 80 * FACTOR, 3)


def test_a_disc_lies_on_the_predicted_place(picture):
    y, x = (PREDICTED[0] + 0.5) * FACTOR
    assert colored(picture, 0)[int(y), int(x)]


def test_a_disc_and_a_ring_span_the_predicted_and_the_true_place(picture):
    y, x = (PREDICTED[0] + 0.5) * FACTOR
    rows, columns = np.nonzero(colored(picture, 0))
    assert abs(rows.mean() - y) < 2
    assert columns.min() > x - 8
    assert abs(columns.max() - 50.5 * FACTOR) < 8


def test_a_white_line_leads_from_the_disc_into_the_ring(picture):
    y = int((PREDICTED[0, 0] + 0.5) * FACTOR)
    is_white = (picture == 255).all(axis=2)
    assert is_white[y - 1 : y + 1, 250:296].any(axis=0).all()


def test_a_point_that_is_neither_found_nor_true_is_not_drawn(picture):
    assert not colored(picture, 1).any()


def test_an_image_is_enlarged_by_the_factor_nearest_to_480_pixels():
    assert enlarge_picture(np.zeros((100, 190, 3)))[1] == 3


def test_points_are_as_large_in_a_high_image_as_in_a_wide_one():
    rows, columns = np.nonzero(
        colored(render_points(np.zeros((1500, 80), np.uint8), np.array([[700.0, 40.0]]), IS_FIRST[:1]), 0)
    )
    assert rows.max() - rows.min() == columns.max() - columns.min() == 18


def test_a_large_image_is_not_enlarged():
    picture, times = enlarge_picture(np.zeros((500, 900, 3), np.uint8))
    assert times == 1
    assert picture.shape == (500, 900, 3)
