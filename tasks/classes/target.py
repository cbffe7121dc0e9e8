"""The class of each pixel."""

from dataclasses import dataclass
from typing import Any

from data_utils.target import Target, labels
from unet.config import IGNORE_INDEX


@dataclass(frozen=True, eq=False)
class ClassTarget(Target):
    """mask: the class index of each pixel, 255 where ignored."""

    mask: Any = labels(unknown=IGNORE_INDEX)
