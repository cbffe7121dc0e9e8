"""Polygons of annotations: cut where they reach far outside of a picture, and filled.

Modules: data_utils/sources/annotations/polygons.py.
"""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from data_utils.sources.annotations.polygons import clip_polygon, fill


@pytest.mark.parametrize("points", [[(2, 2), (12, 3), (9, 15)], [(-20, -10), (40, 3), (9, 30)]])
def test_a_polygon_near_the_picture_is_drawn_as_it_is(points):
    points = np.array(points, float)
    assert clip_polygon(points, (18, 24)) is points


def test_nothing_is_left_of_a_polygon_far_from_the_picture():
    far = np.array([(500.0, 2.0), (509.0, 2.0), (509.0, 9.0)])
    assert clip_polygon(far, (18, 24)).shape == (0, 2)
    picture = Image.new("L", (24, 18))
    fill(ImageDraw.Draw(picture), far, 7)
    assert picture.getbbox() is None


@pytest.mark.parametrize("size", [(40, 10), (10, 40)])
def test_a_polygon_fills_a_picture_of_any_proportions(size):
    picture = Image.new("L", size)
    right, bottom = size[0] - 1, size[1] - 1
    fill(ImageDraw.Draw(picture), np.array([(0, 0), (right, 0), (right, bottom), (0, bottom)], float), 7)
    assert np.asarray(picture).tolist() == [[7] * size[0]] * size[1]


@pytest.mark.parametrize(("height", "width"), [(18, 24), (60, 20)])
def test_a_polygon_cut_at_a_larger_frame_covers_the_same_pixels(height, width):
    """Each pixel lies inside the whole polygon, so it must lie on the inner side of each edge of the cut one."""
    whole = np.array([(-5000.0, 9.0), (12.0, -4000.0), (6000.0, 9.0), (12.0, 7000.0)])
    cut = clip_polygon(whole, (height, width))
    assert cut.min(axis=0) == pytest.approx([-width, -height])
    assert cut.max(axis=0) == pytest.approx([2 * width, 2 * height])
    y, x = np.mgrid[:height, :width]
    for (x0, y0), (x1, y1) in zip(cut, np.roll(cut, -1, axis=0), strict=True):
        assert ((x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) >= -1e-6).all()
