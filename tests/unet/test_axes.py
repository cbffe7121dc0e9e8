"""The levels of a network along each axis, worked out by hand.

Module: unet/axes.py.
"""

import pytest

from unet.axes import level_axes


@pytest.mark.parametrize(
    ("spacing", "patch", "depth", "kernels", "strides"),
    [
        ((1, 1), (64, 64), None, [(3, 3)] * 5, [(2, 2)] * 4),
        ((1, 1), (1024, 1024), None, [(3, 3)] * 6, [(2, 2)] * 5),
        ((1, 1), (64, 64), 2, [(3, 3)] * 3, [(2, 2)] * 2),
        ((1, 1), (6, 6), None, [(3, 3)] * 2, [(2, 2)]),
        ((1, 1), (8, 32), None, [(3, 3)] * 4, [(2, 2), (1, 2), (1, 2)]),
        ((2, 1), (32, 16), None, [(1, 3)] + [(3, 3)] * 4, [(1, 2), (2, 2), (2, 1), (2, 1)]),
        ((1.9, 1), (16, 16), None, [(3, 3)] * 3, [(2, 2)] * 2),
    ],
    ids=["square", "large", "given depth", "tiny", "long", "coarse rows", "nearly equal"],
)
def test_levels_pool_fine_and_long_axes(spacing, patch, depth, kernels, strides):
    assert level_axes(spacing, patch, depth) == (tuple(kernels), tuple(strides))
