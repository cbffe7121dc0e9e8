"""Masks whose borders hold values invented by smoothing, resizing or JPEG, which are not classes."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from data_utils.analysis.inspect_record import mask_parts
from data_utils.analysis.inspection import SplitInspection
from data_utils.analysis.problems import REPAIR, SWAPPED_FOLDERS_HINT
from data_utils.class_names import classes_example
from data_utils.mask_values import MANY_VALUES, count_colors, count_values, has_colors, show, sort_values
from data_utils.sources.records import spread_indices
from runtime.cache import digest, load_or_compute
from runtime.console import listing
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, MaskValue

MASKS = 64  # masks of a split that are read again
VOLUMES = 8
IMAGES = 4  # images of a split whose values are counted
FEW_VALUES = 8  # images of so few values look like masks
MASKS_WITH_VALUE = 4  # masks of each set of values that are read before another set has its second turn
REACH = 2  # the pixels to each side among which the neighbors of a border lie
INVENTED_SHARE = 0.6  # the least share of an invented value's pixels between two others; the rest are ringing
AREA_SHARE = 0.5  # the least share of a class's pixels in areas at least three pixels thick
MIN_BORDER_VALUES = 2  # a single value on a border may be a class that somebody drew there
NAMES_IN_MESSAGE = 3  # masks that a message names


@dataclass
class BorderCounts:
    """How many pixels hold each value, in all, on borders, and in areas.

    Args:
        pixels: value -> all its pixels.
        between: value -> its pixels in no area three pixels thick whose neighbors hold both lower and higher values.
        areas: value -> its pixels in areas at least three pixels thick.
    """

    pixels: Counter = field(default_factory=Counter)
    between: Counter = field(default_factory=Counter)
    areas: Counter = field(default_factory=Counter)

    def add(self, mask: np.ndarray) -> None:
        """Count the pixels of a mask (H, W), or (H, W, 3) of colors."""
        channels = mask.reshape(*mask.shape[:2], -1)
        is_center = (_extreme(channels, 1, np.minimum) == _extreme(channels, 1, np.maximum)).all(axis=2)
        in_area = _extreme(is_center[:, :, None], 1, np.maximum)[:, :, 0]
        lowest = _extreme(channels, REACH, np.minimum)
        highest = _extreme(channels, REACH, np.maximum)
        is_inside = (lowest < channels) & (channels < highest)
        is_equal = lowest == highest  # the colors of a border may agree in a channel
        is_between = (is_inside | is_equal).all(axis=2) & ~in_area
        self.pixels.update(count_values(mask))
        self.between.update(_count_where(mask, is_between))
        self.areas.update(_count_where(mask, in_area))

    def classes(self) -> list[MaskValue]:
        """The values that form areas, if most others lie almost only between them; else an empty list."""
        pixels, between, areas = self.pixels, self.between, self.areas
        # grey levels, from masks or strips without other colors, are colors too
        if has_colors(pixels):
            pixels, between, areas = map(count_colors, (pixels, between, areas))
        classes = [value for value, count in pixels.items() if areas[value] >= AREA_SHARE * count]
        thin = pixels.keys() - set(classes)
        invented = sum(between[value] >= INVENTED_SHARE * pixels[value] for value in thin)
        return classes if 2 <= len(classes) <= invented else []


def _extreme(channels: np.ndarray, reach: int, extreme: np.ufunc) -> np.ndarray:
    """The lowest or highest of (H, W, C) within `reach` rows and columns of each pixel."""
    height, width = channels.shape[:2]
    padded = np.pad(channels, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    rows = [padded[start : start + height] for start in range(2 * reach + 1)]
    by_row = extreme.reduce(rows)
    return extreme.reduce([by_row[:, start : start + width] for start in range(2 * reach + 1)])


def _count_where(mask: np.ndarray, is_chosen: np.ndarray) -> dict[MaskValue, int]:
    """Pixels of each value among the chosen ones of a mask."""
    values = mask[is_chosen]
    return count_values(values[:, None]) if len(values) else {}


def check_masks(splits: Sequence[SplitInspection], pixels: dict[MaskValue, int]) -> None:
    """Raises DataError if masks hold values that smoothing, resizing or JPEG has invented on the borders of others.

    It is also raised if masks look like images, and images like masks. `pixels` counts how many pixels of the masks
    hold each value, none of which has a name.
    """
    numbers = pixels.keys() - {IGNORE_INDEX}
    is_numbered = numbers == set(range(len(numbers))) and len(pixels) <= MANY_VALUES
    if len(pixels) < 2 + MIN_BORDER_VALUES or is_numbered:
        return
    if len(pixels) > MANY_VALUES:
        _check_folders(splits, pixels)
    digests = [split.records.digest for split in splits]
    key = digest("values on borders of masks", *digests) if all(digests) else None
    values = load_or_compute(key, partial(_classes, splits))
    if values:
        classes = sort_values(values)
        raise DataError(f"{_describe(splits, pixels, classes)}. If all values are classes, give --task classes")


def _check_folders(splits: Sequence[SplitInspection], pixels: dict[MaskValue, int]) -> None:
    """Raises DataError if some images, read as if they were masks, hold a few values alone, as only masks do."""
    values: set[MaskValue] = set()
    with suppress(DataError):  # an image that cannot be a mask
        for split in splits:
            for i in spread_indices(len(split.records), IMAGES):
                record = split.records[i]
                for part in mask_parts(record["image"], record["name"]):
                    values.update(count_values(part.values))
                    if len(values) > FEW_VALUES:
                        return
    if values:
        raise DataError(
            f"{SWAPPED_FOLDERS_HINT} The masks hold {len(pixels)} values, {show(sort_values(pixels))}, and the images"
            f" {show(sort_values(values))} alone. If all values of the masks are classes, give --task classes"
        )


def _classes(splits: Sequence[SplitInspection]) -> list[MaskValue]:
    """The classes that `BorderCounts` finds in some masks of the splits."""
    counts = BorderCounts()
    for split in splits:
        for i in _sample(split, VOLUMES if split.records.dims == 3 else MASKS):
            record = split.records[i]
            for part in mask_parts(record["target"], record["name"]):
                counts.add(part.values)
    return counts.classes()


def _sample(split: SplitInspection, most: int) -> list[int]:
    """The indices of at most `most` records: some for each set of mask values, sets of three or more values first."""
    members_by_content = {content: members.tolist() for content, _, members in split.used_contents()}
    first: list[int] = []
    later_indices: list[int] = []
    for content in sorted(members_by_content, key=lambda content: len(content.values), reverse=True):
        first += members_by_content[content][:MASKS_WITH_VALUE]
        later_indices += members_by_content[content][MASKS_WITH_VALUE:]
    return (first + later_indices)[:most]


def _describe(splits: Sequence[SplitInspection], pixels: dict[MaskValue, int], classes: list[MaskValue]) -> str:
    """A line: what was seen, in which masks, and what to do."""
    share = sum(pixels[value] for value in classes) / sum(pixels.values())
    invented = sort_values(pixels.keys() - set(classes))
    names: list[str] = []
    for split in splits:
        spoiled: list[int] = []
        for content, _, members in split.used_contents():
            if not set(content.values) <= set(classes):
                spoiled += members.tolist()
        names += map(split.records.name, sorted(spoiled))
    total = sum(len(split.records) for split in splits)
    return (
        f"the masks look spoiled: {share:.1%} of their pixels hold {show(classes)}; the other values, {show(invented)},"
        f" lie on the borders between them, at most two pixels thick, as smoothing, resizing and JPEG leave them, in"
        f" {len(names)} of {total} masks: {listing(names, NAMES_IN_MESSAGE)}. {REPAIR}; --check-data --classes"
        f" {classes_example(classes)} lists these files, and --outside ignore after it trains without the other values"
    )
