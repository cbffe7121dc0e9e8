"""Positions of points between the pixels of an image and the space of their file.

Modules: data_utils/sources/points/spaces.py.
"""

import numpy as np
import pytest

from data_utils.image_io.formats import PointSource
from data_utils.point_states import PRESENT
from data_utils.sources.points.spaces import to_pixels


@pytest.fixture
def source():
    """A point of a file that counts from the lowest row, whose image has a size that the file does not say."""
    return PointSource("a.tps", "pixels from the bottom", np.array([[5.0, 6.0]]), np.array([PRESENT]), None)


@pytest.mark.parametrize(
    ("space", "size", "pixels"),
    [
        ("pixels", (10, 20), [2.75, 2.25]),
        ("pixels from the bottom", (10, 20), [1.25, 2.25]),
        ("pixels", (10, 21), [2.75, 5.5 * 10 / 21 - 0.5]),  # half of 21 is rounded to 10 pixels
    ],
)
def test_positions_follow_an_image_that_was_made_smaller(source, space, size, pixels):
    assert to_pixels(source._replace(space=space, size=size), (5, 10), "a").tolist() == [pixels]
