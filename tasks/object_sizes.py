"""Ranges of the sizes of objects and areas, and how many of each are found."""

from collections.abc import Sequence
from itertools import pairwise

SIZES = (64, 256, 1024, 4096)  # limits, in pixels, of the ranges of sizes in which objects are counted


def size_labels() -> list[str]:
    """The text of each range of sizes."""
    labels = [f"below {SIZES[0]:,}"]
    for low, high in pairwise(SIZES):
        labels.append(f"{low:,} to {high - 1:,}")
    return [*labels, f"{SIZES[-1]:,} and more"]


def found_by_size(found_counts: Sequence[int], objects: Sequence[int]) -> str:
    """For each range of sizes, how many of its objects were found, in words."""
    texts = []
    for label, found_ones, all_ones in zip(size_labels(), found_counts, objects, strict=True):
        if all_ones:
            texts.append(f"{label}: {found_ones:,} of {all_ones:,}")
    return "; ".join(texts) or "no objects"
