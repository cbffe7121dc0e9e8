"""Points of an image that is cropped, padded, cut into strips, moved, or sent to a device.

Modules: tasks/points.py.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.landmarks import batch_of_image, batch_of_points, image_points

from tasks.points import ABSENT, OUTSIDE, PRESENT, UNKNOWN, PointTarget, unknown_points
from tasks.target import Target


@pytest.fixture
def whole() -> PointTarget:
    """The points of an image of 10 x 12; the first two are there."""
    return image_points([[5.0, 5.0], [1.0, 9.0], [3.4, 2.6]], [PRESENT, PRESENT, ABSENT], (10, 12))


def test_a_crop_knows_nothing_of_the_presence_of_points_outside(whole):
    crop = whole.crop([slice(2, 8), slice(1, 6)])
    assert crop.points.tolist() == (whole.points - [2, 1]).tolist()
    assert crop.states.tolist() == [PRESENT, OUTSIDE, ABSENT]
    assert [place.tolist() for place in crop.locations()] == [[[3, 4]]]


def test_a_padded_crop_has_another_size_than_the_crop(whole):
    crop = whole.crop([slice(2, 8), slice(1, 6)])
    assert crop.pad((8, 8)).shape == (8, 8)
    assert crop.shape == (6, 5)


def test_a_crop_that_reaches_beyond_the_image_ends_with_it(whole):
    assert whole.crop([slice(2, 13), slice(5, 20)]).shape == (8, 7)


def test_a_crop_leaves_the_whole_image_as_it_is(whole):
    whole.crop([slice(2, 8), slice(1, 6)])
    assert whole.states.tolist() == [PRESENT, PRESENT, ABSENT]
    assert whole.shape == (10, 12)


def test_a_crop_reaches_half_a_pixel_beyond_its_first_and_last_centers():
    points = [[1.5, 4], [1.49, 4], [5.49, 4], [5.5, 4], [0, 0], [0, 0]]
    states = [PRESENT] * 4 + [ABSENT, UNKNOWN]
    crop = image_points(points, states, (10, 10)).crop([slice(2, 6), slice(0, 10)])
    assert crop.states.tolist() == [PRESENT, OUTSIDE, PRESENT, OUTSIDE, ABSENT, UNKNOWN]
    assert crop.points[0].tolist() == [-0.5, 4]


def test_crops_are_centered_on_the_pixels_of_present_points():
    target = image_points([[3.6, 2.4], [1, 1], [2, 2]], [PRESENT, ABSENT, OUTSIDE], (9, 9))
    assert [place.tolist() for place in target.locations()] == [[[4, 2]]]


def test_a_band_of_points_is_counted_from_its_own_first_row():
    batch = batch_of_image(image_points([[5, 4]], [PRESENT], (10, 12)))
    strip = batch.strip(3, 8)
    assert strip.points.tolist() == [[[2, 4]]]
    assert strip.shape == (1, 5, 12)
    assert batch.points.tolist() == [[[5, 4]]]
    assert batch.shape == (1, 10, 12)


def test_the_shape_of_volumes_has_all_sides():
    volume = image_points([[1, 2, 3]], [PRESENT], (4, 5, 6))
    assert volume.shape == (4, 5, 6)
    assert batch_of_image(volume).shape == (1, 4, 5, 6)


def test_a_moved_point_is_outside_only_where_it_was_there():
    target = batch_of_image(image_points([[0, 0], [2, 0], [2, 0], [2, 3]], [PRESENT, ABSENT, UNKNOWN, PRESENT], (4, 6)))
    moved = target.move(
        move_labels=lambda labels, unknown: labels,
        move_points=lambda points: points + torch.tensor([1.5, 0.0]),
    )
    assert moved.states.tolist() == [[PRESENT, ABSENT, UNKNOWN, OUTSIDE]]  # 3.5 is the border of the last pixel


@pytest.mark.parametrize(("device", "dtype"), [("mps", torch.float32), ("cuda", torch.float64), ("cpu", torch.float64)])
def test_points_are_in_double_precision_where_the_device_has_it(monkeypatch, device, dtype):
    monkeypatch.setattr(Target, "to", lambda target, device, non_blocking: target)
    moved = batch_of_points(torch.zeros(1, 1, 2), [[PRESENT]], (8, 9)).to(torch.device(device))
    assert moved.points.dtype == moved.unit.dtype == dtype
    assert moved.size.dtype == torch.int64


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


def test_a_moved_volume_reaches_half_a_pixel_beyond_the_centers_of_its_border():
    batch = batch_of_image(replace(unknown_points(3, (4, 6, 5)), states=np.full(3, PRESENT)))
    corners = torch.tensor([[3.4, 5.4, 4.4], [3.5, 0, 0], [0, 5.5, 0]])
    moved = batch.move(lambda labels, unknown: labels, lambda points: points + corners.double())
    assert moved.states[0].tolist() == [PRESENT, OUTSIDE, OUTSIDE]
