"""The lengths of runs. In short runs small images and narrow networks score higher, since they allow more steps."""

import math
from typing import NamedTuple


class RunLength(NamedTuple):
    """The sizes that the plan chooses for runs of one length; the defaults are those of a long run.

    Args:
        minutes: runs of fewer minutes have this length, unless they have a shorter one.
        resized_pixels: the most pixels of a resized image, if its masks keep their detail.
        cropped_pixels: the approximate pixels of a crop of an image.
        patch_voxels, point_patch_voxels: the most voxels of a patch of a volume, and of a volume with points.
        base_channels, base_channels_for_many: of a network without an encoder, and with many training images.
        batch_size: the images of a batch.
    """

    minutes: float = math.inf
    resized_pixels: int = 512 * 512
    cropped_pixels: int = 512 * 512
    patch_voxels: int = 128**3
    point_patch_voxels: int = 128**3
    base_channels: int = 32
    base_channels_for_many: int = 64
    batch_size: int = 4


LONG = RunLength()
SHORT = RunLength(
    minutes=60,
    resized_pixels=192 * 256,
    cropped_pixels=192 * 256,
    patch_voxels=48**3,
    point_patch_voxels=48**3,
    base_channels=16,
    base_channels_for_many=16,
    batch_size=2,
)
VERY_SHORT = SHORT._replace(minutes=15, resized_pixels=128 * 160, point_patch_voxels=32**3)
# a frozen encoder gets more pixels: it has learned from larger images
VERY_SHORT_FROZEN = VERY_SHORT._replace(resized_pixels=256 * 320, cropped_pixels=256 * 320)


def run_length(max_minutes: float | None, is_frozen: bool = False) -> RunLength:
    """The length of a run.

    Args:
        max_minutes: the value of --max-minutes; None if the run has no limit.
        is_frozen: whether the network has a frozen encoder.
    """
    minutes = max_minutes or math.inf
    if minutes < VERY_SHORT.minutes:
        return VERY_SHORT_FROZEN if is_frozen else VERY_SHORT
    return SHORT if minutes < SHORT.minutes else LONG
