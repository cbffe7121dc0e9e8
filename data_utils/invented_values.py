"""Masks with too many values: which of them smoothing, resizing or JPEG may have invented."""

from collections.abc import Mapping
from typing import Any

import numpy as np

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
    ordered: list[Any] = sorted(pixels)
    first_values = np.array(ordered[: MAX_VALUES + 1]).reshape(MAX_VALUES + 1, -1)
    if first_values.shape[1] == 3:  # colors: smoothed edges hold many that differ by little
        distances = np.abs(first_values[:, None] - first_values).max(axis=2)
        has_neighbor = (distances <= 2).sum(axis=1) > 1
        is_smooth = has_neighbor.mean() > 0.5
    else:
        most_frequent = sorted(pixels, key=pixels.__getitem__, reverse=True)[:2]
        is_between_two = set(most_frequent) == {ordered[0], ordered[-1]}  # 0 and 65535, say; not so for instances
        is_smooth = is_between_two or max(ordered) <= 255
    if not is_smooth:
        return f"{show(ordered)}; are these numbers of objects (--task objects), or are images and masks swapped?"
    guess = describe_invented(pixels)
    if guess is None and first_values.shape[1] == 3:
        return f"{show(ordered)}; {SWAPPED_FOLDERS_HINT}, or are these smoothed edges (JPEG, interpolation)? {REPAIR}"
    guess = guess or f"are these smoothed edges (JPEG, interpolation)? {REPAIR}"
    return f"{show(ordered)}; {guess} (or are images and masks swapped?)"


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
