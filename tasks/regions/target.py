"""Regions: unions of mask values, as bits."""

from collections.abc import Sequence
from typing import NamedTuple


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
