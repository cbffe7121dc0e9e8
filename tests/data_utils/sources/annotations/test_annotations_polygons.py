"""Polygons of annotations: cut where they reach far outside of a picture, and filled.

Modules: data_utils/sources/annotations/drawn.py.
"""

import numpy as np
import pytest

from data_utils.sources.annotations.drawn import clip_polygon


@pytest.mark.parametrize("points", [[(2, 2), (12, 3), (9, 15)], [(-20, -10), (40, 3), (9, 30)]])
def test_a_polygon_near_the_picture_is_drawn_as_it_is(points):
    points = np.array(points, float)
    assert clip_polygon(points, (18, 24)) is points


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
