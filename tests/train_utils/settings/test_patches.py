"""The patches of volumes, worked out by hand.

Module: train_utils/settings/plan.py.
"""

import pytest
from support.splits import unread_info, unread_split

from train_utils.settings.plan import LONG, patch_size, run_length
from unet.config import Preprocess


@pytest.mark.parametrize(
    ("size", "spacing", "minutes", "patch"),
    [
        ((100, 300, 300), (1, 1, 1), 60, (112, 160, 160)),
        ((20, 300, 300), (4, 1, 1), 60, (20, 320, 320)),
        ((40, 40, 40), (1, 1, 1), 60, (40, 40, 40)),
        ((40, 60, 400), (5, 1, 1), 59, (20, 64, 112)),
        ((20, 400, 400), (200, 0.5, 0.5), 10, (1, 384, 384)),
    ],
)
def test_patches_are_as_long_along_each_axis_as_there_is_room(size, spacing, minutes, patch):
    assert patch_size(unread_info(unread_split(5, size, spacing)), run_length(minutes)) == patch


def test_patches_of_a_model_to_start_from_have_its_spacing():
    info = unread_info(unread_split(5, (200, 200, 200), (1, 1, 1)))
    assert patch_size(info, LONG, Preprocess(spacing=(2.0, 2.0, 2.0))) == (112, 112, 112)  # of 100, in steps of 16


def test_the_usual_volume_decides_how_large_patches_are():
    info = unread_info(unread_split(5, (40, 40, 40), (1, 1, 1)))
    info.train.sizes[4] = (400, 400, 400)
    assert patch_size(info, LONG) == (40, 40, 40)


def test_volumes_of_several_spacings_are_compared_in_mm():
    info = unread_info(unread_split(3, (80, 80, 80), (1, 1, 1)))
    info.train.sizes[1:] = [[32] * 3, [60] * 3]
    info.train.spacings[1:] = [[2] * 3, [3] * 3]
    assert patch_size(info, LONG) == (40, 40, 40)  # of 80, 64 and 180 mm, in voxels of 2 mm
