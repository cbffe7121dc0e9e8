"""The class of each pixel."""

from dataclasses import dataclass
from typing import Any

from data_utils.target import Target, image_label, labels
from unet.config import IGNORE_INDEX


@dataclass(frozen=True, eq=False)
class ClassTarget(Target):
    """mask: the class index of each pixel, 255 where ignored."""

    mask: Any = labels(unknown=IGNORE_INDEX)


@dataclass(frozen=True, eq=False)
class PartlyLabeledTarget(ClassTarget):
    """The classes of pixels, and the set of classes that an image is labeled for.

    If a pixel's class in the mask is not in the set, the pixel may be of any class outside of the set.

    Args:
        mask: the class index of each pixel, 255 where ignored.
        label_set: the index of the set of classes; 0 for all classes.
    """

    label_set: Any = image_label(unknown=0)
