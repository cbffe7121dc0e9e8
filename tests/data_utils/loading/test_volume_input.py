"""From the voxels of a volume to what the network gets: resampled as each axis asks, clipped and standardized."""

import numpy as np
import pytest

from data_utils.image_io.volumes import VolumeHeader
from data_utils.loading.volume_input import SliceInput, VolumeInput
from runtime.errors import DataError
from unet.config import Preprocess


def header(size: tuple[int, int, int], spacing: tuple[float, float, float], channels: int = 1) -> VolumeHeader:
    return VolumeHeader(size, spacing, channels, "float32", np.eye(4), ((0, 1), (1, 1), (2, 1)))


def test_an_axis_is_resampled_linearly_beyond_three_times_the_finest_spacing():
    step = np.zeros((8, 8, 8, 1), np.float32)
    step[4:] = 100
    rings = {}
    for spacing in (3.0, 3.1):
        for axis in range(3):
            sides = [1.0, 1.0, 1.0]
            sides[axis] = spacing
            target_spacing = [1.0, 1.0, 1.0]
            target_spacing[axis] = spacing / 2
            volume = VolumeInput(
                np.moveaxis(step, 0, axis),
                header((8, 8, 8), tuple(sides)),
                Preprocess(spacing=tuple(target_spacing)),
                1,
            )
            rings[spacing, axis] = bool(volume.whole().max() > 101)
    assert rings == {(spacing, axis): spacing == 3.0 for spacing in (3.0, 3.1) for axis in range(3)}


def test_a_volume_far_from_zero_is_standardized_by_what_is_left_after_clipping():
    voxels = np.random.default_rng(0).normal(1e6, 3, (20, 30, 30, 2)).astype(np.float32)
    voxels[0, 0, 0] = -1e9
    voxels[..., 1] = 7
    clipped = voxels[..., 0].clip(999_990, 1_000_010).astype(np.float64)
    preprocess = Preprocess(clip=(999_990, 1_000_010), standardize=True)
    volume = VolumeInput(voxels, header((20, 30, 30), (1.0, 1.0, 1.0), 2), preprocess, 2)
    assert volume.mean[0] == pytest.approx(clipped.mean(), abs=0.07)  # float32 has steps of 1/16 there
    assert volume.std.tolist() == pytest.approx([clipped.std(), 1.0], rel=1e-3)
    with pytest.raises(DataError, match="a: has 2 channels, the model takes 3"):
        VolumeInput(voxels, header((20, 30, 30), (1.0, 1.0, 1.0), 2), preprocess, 3, "a")


def test_a_volume_of_a_narrow_range_is_standardized():
    voxels = 0.01 * np.random.default_rng(0).normal(50, 9, (4, 5, 6, 1)).astype(np.float32)
    whole = VolumeInput(voxels, header((4, 5, 6), (1.0, 1.0, 1.0)), Preprocess(standardize=True), 1).whole()
    assert whole.mean() == pytest.approx(0, abs=1e-4)
    assert whole.std() == pytest.approx(1, abs=1e-4)


def test_slices_of_a_volume_have_the_size_that_a_network_of_images_wants():
    voxels = np.random.default_rng(0).normal(size=(3, 8, 10, 1)).astype(np.float32)
    slices = SliceInput(VolumeInput(voxels, header((3, 8, 10), (1.0, 1.0, 1.0)), Preprocess(scale=0.5), 1))
    assert slices.size == (3, 4, 5)
    assert slices.strip(1, 3).shape == (1, 2, 4, 5)
    assert np.array_equal(slices.strip(1, 3), slices.strip(0, 3)[:, 1:])
