"""Points of an image that is cropped, padded, cut into strips, moved, or sent to a device.

Modules: tasks/landmarks/target.py.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.landmarks import batch_of_image, image_points

from data_utils.point_states import ABSENT, OUTSIDE, PRESENT, UNKNOWN
from tasks.landmarks.target import PointTarget, unknown_points


@pytest.fixture
def whole() -> PointTarget:
    """The points of an image of 10 x 12; the first two are there."""
    return image_points([[5.0, 5.0], [1.0, 9.0], [3.4, 2.6]], [PRESENT, PRESENT, ABSENT], (10, 12))


def test_a_crop_knows_nothing_of_the_presence_of_points_outside(whole):
    crop = whole.crop([slice(2, 8), slice(1, 6)])
    assert crop.points.tolist() == (whole.points - [2, 1]).tolist()
    assert crop.states.tolist() == [PRESENT, OUTSIDE, ABSENT]
    assert [place.tolist() for place in crop.locations()] == [[[3, 4]]]


def test_a_moved_point_is_outside_only_where_it_was_there():
    target = batch_of_image(image_points([[0, 0], [2, 0], [2, 0], [2, 3]], [PRESENT, ABSENT, UNKNOWN, PRESENT], (4, 6)))
    moved = target.move(
        move_labels=lambda labels, unknown: labels,
        move_points=lambda points: points + torch.tensor([1.5, 0.0]),
    )
    assert moved.states.tolist() == [[PRESENT, ABSENT, UNKNOWN, OUTSIDE]]  # 3.5 is the border of the last pixel


def test_the_size_of_images_stays_where_shapes_are_needed():
    moved = batch_of_image(image_points([[5, 4]], [PRESENT], (10, 12))).to(torch.device("meta"))
    assert moved.size.device.type == "cpu"
    assert moved.points.device.type == "meta"
    assert moved.shape == (1, 10, 12)


BORDER = [[-0.5, 0], [-0.6, 0], [5.4, 0], [5.5, 0], [0, -0.5], [0, -0.6], [0, 4.4], [0, 4.5]]  # of 6 x 5 pixels
STATES_AT_BORDER = [PRESENT, OUTSIDE] * 4


def test_a_crop_reaches_half_a_pixel_beyond_the_centers_of_its_border():
    whole = replace(unknown_points(8, (20, 20)), points=np.add(BORDER, (3, 2)), states=np.full(8, PRESENT))
    assert whole.crop([slice(3, 9), slice(2, 7)]).states.tolist() == STATES_AT_BORDER


def test_a_moved_image_reaches_half_a_pixel_beyond_the_centers_of_its_border():
    batch = batch_of_image(replace(unknown_points(8, (6, 5)), states=np.full(8, PRESENT)))
    moved = batch.move(lambda labels, unknown: labels, lambda points: points + torch.tensor(BORDER).double())
    assert moved.states[0].tolist() == STATES_AT_BORDER
