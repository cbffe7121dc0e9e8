"""Resampling of volumes: linear along a coarse axis, where a cubic curve would ring, cubic along the others."""

import numpy as np
import pytest

from data_utils.image_io.resize import linear
from data_utils.image_io.volumes import VolumeHeader
from data_utils.loading.volume_input import VolumeInput
from unet.config import Preprocess


@pytest.mark.parametrize("coarse", [0, 1, 2], ids=["z", "y", "x"])
@pytest.mark.parametrize("axis", [0, 1, 2], ids=["z", "y", "x"])
def test_an_edge_rings_along_all_axes_but_the_coarse_one(coarse, axis):
    voxels = np.zeros((8, 8, 8), np.float32)
    np.moveaxis(voxels, axis, 0)[4:] = 1
    spacing = [1.0, 1.0, 1.0]
    spacing[coarse] = 5.0
    header = VolumeHeader((8, 8, 8), tuple(spacing), 1, "float32", np.eye(4), ((0, 1), (1, 1), (2, 1)))
    preprocess = Preprocess(spacing=tuple(side / 2 for side in spacing))
    resampled = VolumeInput(voxels[..., None], header, preprocess, 1).whole()
    assert resampled.shape == (1, 16, 16, 16)
    rings = resampled.min() < -0.01 or resampled.max() > 1.01
    assert rings == (axis != coarse)


@pytest.mark.parametrize("target", [4, 8, 16])
def test_a_straight_line_is_resampled_to_itself(target):
    taps, weights = linear(8, target)
    line = (taps * weights).sum(axis=1)
    centers = (np.arange(target) + 0.5) * 8 / target - 0.5
    inside = slice(1, -1)  # the ends are repeated
    np.testing.assert_allclose(line[inside], centers[inside], atol=1e-12)
