"""Bits of the classes of each pixel. Regions, which are unions of mask values, are such classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from data_utils.target import Target, labels


@dataclass(frozen=True, eq=False)
class OverlapTarget(Target):
    """Bit k of a pixel stands for class k.

    Args:
        truth: the classes that are present.
        known: the classes whose presence or absence is known; a class in `truth` is known.
    """

    truth: Any = labels(unknown=0, dtype="int32")
    known: Any = labels(unknown=0, dtype="int32")


class Region(NamedTuple):
    """A union of labels.

    Args:
        values: the mask values of its labels; the first one is written to pixels whose last region this is.
    """

    name: str
    values: tuple[int, ...]

    @property
    def label(self) -> str:
        """The label that is written for the region, in words."""
        return f"label {self.values[0]}"


def region_bits(regions: Sequence[Region], value: int) -> int:
    """The bits of the regions that contain a mask value."""
    return sum(1 << bit for bit, region in enumerate(regions) if value in region.values)


def last_classes(bits: np.ndarray, count: int) -> np.ndarray:
    """(*spatial) uint8: the last of `count` classes at each pixel, which lies over earlier ones, from 1; 0 for none."""
    numbers = np.zeros(bits.shape, np.uint8)
    for bit in range(count):
        numbers[bits >> bit & 1 == 1] = bit + 1
    return numbers
