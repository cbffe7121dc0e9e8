"""Flags that do not suit the data: crops of other axes, and a scale at which nothing is left to see.

Module: train_utils/settings/plan.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from support.in_process import parsed
from support.splits import unread_info, unread_split

from runtime.errors import SettingsError
from train_utils.settings.plan import check_axes, check_scale
from unet import UNetConfig
from unet.config import Preprocess

IMAGES = unread_info(unread_split(3, (64, 64)))
VOLUMES = unread_info(unread_split(3, (64, 64, 64)))


@pytest.mark.parametrize(
    ("info", "flags", "line"),
    [
        (IMAGES, "--crop-size 4 4 4", "--crop-size 4 4 4: data holds images, which take H W"),
        (VOLUMES, "--crop-size 8 8", "--crop-size 8 8: data holds volumes, which take D H W"),
        (VOLUMES, "--encoder lite0", "--encoder lite0: takes images, but data holds volumes"),
        (IMAGES, "--normalization ct --init-from m", "--normalization: the model of --init-from keeps its own"),
    ],
    ids=["crops of volumes", "crops of images", "an encoder", "images and a model"],
)
def test_flags_that_do_not_suit_the_data_are_refused(info, flags, line):
    with pytest.raises(SettingsError) as caught:
        check_axes(info, parsed("--dataset", "data", *flags.split()))
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("info", "flags"),
    [
        (IMAGES, "--crop-size 4 4"),
        (IMAGES, "--normalization ct"),
        (IMAGES, "--encoder lite0"),
    ],
)
def test_flags_that_suit_the_data_are_taken(info, flags):
    check_axes(info, parsed("--dataset", "data", *flags.split()))


def check(typed: float | None, used: float, *sizes: tuple[int, int]) -> None:
    """Check a scale of images of these sizes."""
    info = SimpleNamespace(train=SimpleNamespace(sizes=np.array(sizes)))
    check_scale(info, typed, UNetConfig(preprocess=Preprocess(scale=used)))


def test_a_scale_at_which_nothing_of_the_usual_image_is_left_is_refused_with_one_that_leaves_four_pixels():
    with pytest.raises(SettingsError, match=r"of 24 x 40 pixels as small as 2 x 4, .* give --scale 0\.17 or more"):
        check(0.1, 0.1, (24, 40), (31, 30), (9, 900))


def test_other_scales_are_taken():
    check(0.25, 0.25, (16, 16))  # 4 x 4 pixels
    check(None, 0.1, (16, 16))  # of a plan
    check(0.5, 0.5, (3, 50))  # small from the start
    check(1, 1.0, (16, 16, 16))
    check(0.01, 0.01, (0, 0))  # a stream
