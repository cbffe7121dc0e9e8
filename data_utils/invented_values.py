"""Masks with too many values: which of them smoothing, resizing or JPEG may have invented."""

from collections.abc import Mapping

from data_utils.class_names import classes_example
from data_utils.mask_values import MAX_VALUES, VALUES_IN_MESSAGE, show, sort_values
from unet.config import MaskValue

REPAIR = (
    "Export the masks again without smoothing (re-saving them keeps the invented values),"
    " see docs/preparing-masks.md#no-smoothed-edges"
)
SWAPPED_FOLDERS_HINT = "are images and masks swapped"
COMMON_SHARE = 0.05  # a value with such a share of the pixels is hardly an edge
MOST_SHARE = 0.6  # where few values hold such a share of the pixels, the others may be invented


def excess_values(pixels: Mapping[MaskValue, int]) -> str | None:
    """The values and their likely origin, in words, if there are more than a data set may have; else None."""
    if len(pixels) <= MAX_VALUES:
        return None
    origin = describe_invented(pixels) or f"are these smoothed edges (JPEG, interpolation)? {REPAIR}"
    values = show(sort_values(pixels))
    return f"{values}; {origin}; or are these numbers of objects (--task objects), or {SWAPPED_FOLDERS_HINT}?"


def describe_invented(pixels: Mapping[MaskValue, int]) -> str | None:
    """A line on masks with very many values if a few of these hold most of the pixels; else None."""
    total = sum(pixels.values())
    ordered = sorted(pixels, key=pixels.__getitem__, reverse=True)
    share = 0.0
    count = 0
    for value in ordered[:VALUES_IN_MESSAGE]:
        if count >= 2 and share >= MOST_SHARE and pixels[value] < COMMON_SHARE * total:
            break
        share += pixels[value] / total
        count += 1
    if count < 2 or share < MOST_SHARE:
        return None
    classes = sort_values(ordered[:count])
    return (
        f"{share:.1%} of the pixels hold {show(classes)}; the others look like smoothed edges (JPEG, interpolation)."
        f" {REPAIR}; --check-data --classes {classes_example(classes)} lists the files, and --outside ignore after it"
        " trains without the other values. If there are more classes, name them all"
    )
