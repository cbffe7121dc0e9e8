"""Masks whose borders hold values invented by smoothing, resizing or JPEG, which are not classes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from data_utils.analysis.inspection import InspectedSplits, SplitInspection, mask_value_from_json
from data_utils.class_names import classes_example
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.reader import decode_mask, read_image
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.image_io.windowed import open_if_large, strips
from data_utils.invented_values import REPAIR, SWAPPED_FOLDERS_HINT
from data_utils.mask_values import MANY_VALUES, count_colors, count_values, has_colors, is_run, show, sort_values
from data_utils.sources.records import Record, spread_indices
from runtime.cache import digest, load_or_compute
from runtime.console import listing
from runtime.errors import DataError
from unet.config import MaskValue

MASKS = 64  # masks of a split that are read again
VOLUMES = 8
IMAGES = 4  # images of a split whose values are counted
FEW_VALUES = 8  # images of so few values look like masks
MASKS_WITH_VALUE = 4  # masks of each set of values that are read before another set has its second turn
REACH = 2  # the pixels to each side among which the neighbors of a border lie
MOST_REPEATED = 32  # times that a row or column is repeated; farther changes are those of large shapes
INVENTED_SHARE = 0.6  # the least share of an invented value's pixels between two others; the rest are ringing
NEARLY_ALL = 0.8  # of the values that form no areas: thin classes lie between others by chance, and fewer do
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
        mask = without_repetition(mask)
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

    def classes(self, *, insists: bool = False) -> list[MaskValue]:
        """The values that form areas, if most others lie almost only between them; else an empty list.

        Args:
            insists: whether somebody says that all values are classes, so that nearly all others must lie so.
        """
        pixels, between, areas = self.pixels, self.between, self.areas
        # grey levels, from masks or strips without other colors, are colors too
        if has_colors(pixels):
            pixels, between, areas = map(count_colors, (pixels, between, areas))
        classes = [value for value, count in pixels.items() if areas[value] >= AREA_SHARE * count]
        thin = pixels.keys() - set(classes)
        invented = sum(between[value] >= INVENTED_SHARE * pixels[value] for value in thin)
        is_spoiled = invented >= len(classes) and (not insists or invented >= NEARLY_ALL * len(thin))
        return classes if len(classes) >= 2 and is_spoiled else []


def without_repetition(mask: np.ndarray) -> np.ndarray:
    """A mask (H, W) or (H, W, 3) as it was before its pixels were repeated, which makes thin borders thick.

    Enlarging to the nearest pixel repeats rows and columns: then no two changes lie closer together than the factor.
    """
    for axis in (0, 1):
        lines = np.moveaxis(mask, axis, 0).reshape(mask.shape[axis], -1)
        changes = np.flatnonzero((lines[1:] != lines[:-1]).any(axis=1)) + 1
        factor = int(np.diff(changes).min(initial=MOST_REPEATED + 1))
        if 1 < factor <= MOST_REPEATED:
            first = (int(changes[0]) + factor // 2) % factor
            mask = np.take(mask, range(first, mask.shape[axis], factor), axis)
    return mask


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


def check_masks(inspected_splits: InspectedSplits, pixels: dict[MaskValue, int], *, insists: bool = False) -> None:
    """Raises DataError if masks hold values that smoothing, resizing or JPEG has invented on the borders of others.

    It is also raised if masks look like images, and images like masks.

    Args:
        pixels: how many pixels of the masks hold each value; none of them has a name.
        insists: whether a flag says that the values are classes.
    """
    is_numbered = is_run(pixels) and len(pixels) <= MANY_VALUES
    if len(pixels) < 2 + MIN_BORDER_VALUES or is_numbered:
        return
    if len(pixels) > MANY_VALUES and not insists:
        _check_folders(inspected_splits, pixels)
    digests = [records.digest for _, records in inspected_splits]
    key = digest("values on borders", *digests) if all(digests) else None
    likely, certain = load_or_compute(key, lambda: _classes(inspected_splits))
    if certain or (likely and not insists):
        classes = sort_values(map(mask_value_from_json, likely))
        remedy = "name all of them with --classes" if certain else "give --task classes"
        raise DataError(f"{_describe(inspected_splits, pixels, classes)}. If all values are classes, {remedy}")


def _check_folders(inspected_splits: InspectedSplits, pixels: dict[MaskValue, int]) -> None:
    """Raises DataError if some images hold a few values alone, as only masks do."""
    values: set[MaskValue] = set()
    for _, records in inspected_splits:
        for i in spread_indices(len(records), 1 if records.dims == 3 else IMAGES):
            found = _image_values(records[i])
            if found is None:
                return
            values |= found
    if 0 < len(values) <= FEW_VALUES:
        raise DataError(
            f"{SWAPPED_FOLDERS_HINT}? The masks hold {len(pixels)} values, {show(sort_values(pixels))}, and the images"
            f" {show(sort_values(values))} alone. If all values of the masks are classes, give --task classes"
        )


def _image_values(record: Record) -> set[MaskValue] | None:
    """The values of an image, as those of a mask; None for an image that is hardly a mask."""
    source = record["image"]
    with open_if_large(source) as picture, suppress(DataError):
        if picture is not None:
            return None
        pixels = read_volume(source, record["name"])[0] if isinstance(source, VolumeFile) else read_image(source)
        if isinstance(source, VolumeFile) and np.array_equal(pixels, np.rint(pixels)):
            return set(np.unique(pixels).astype(int).tolist())
        if pixels.ndim == 3 and pixels.shape[2] in (1, 3) and pixels.dtype in (np.uint8, np.uint16):
            return set(count_values(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
    return None


def _classes(inspected_splits: InspectedSplits) -> tuple[list[MaskValue], list[MaskValue]]:
    """The classes that `BorderCounts` finds in some masks of the splits, and those that it finds against a flag."""
    counts = BorderCounts()
    for inspection, records in inspected_splits:
        for i in _sample(inspection, VOLUMES if records.dims == 3 else MASKS):
            for mask in mask_planes(records[i]):
                counts.add(mask)
    return counts.classes(), counts.classes(insists=True)


def _sample(inspection: SplitInspection, most: int) -> list[int]:
    """The indices of at most `most` records: some for each set of mask values, sets of three or more values first."""
    members_by_content = {content: members.tolist() for content, _, members in inspection.used_contents()}
    first: list[int] = []
    later_indices: list[int] = []
    for content in sorted(members_by_content, key=lambda content: len(content.values), reverse=True):
        first += members_by_content[content][:MASKS_WITH_VALUE]
        later_indices += members_by_content[content][MASKS_WITH_VALUE:]
    return (first + later_indices)[:most]


def mask_planes(record: Record) -> Iterator[np.ndarray]:
    """The mask of a record, as (H, W) or (H, W, 3): in strips if it is large; the slices of a volume."""
    name = record["name"]
    target = record["target"]
    if isinstance(target, VolumeFile):
        yield from read_label_volume(target, name)[0]
        return
    with open_if_large(target) as picture:
        if picture is None:
            yield decode_mask(target, name).values
            return
        for _, strip in strips(picture):
            yield decode_mask(strip, name).values


def _describe(inspected_splits: InspectedSplits, pixels: dict[MaskValue, int], classes: list[MaskValue]) -> str:
    """A line: what was seen, in which masks, and what to do."""
    share = sum(pixels[value] for value in classes) / sum(pixels.values())
    invented = sort_values(pixels.keys() - set(classes))
    names = []
    masks = 0
    for inspection, records in inspected_splits:
        spoiled: list[int] = []
        for content, _, members in inspection.used_contents():
            if not set(content.values) <= set(classes):
                spoiled += members.tolist()
        names += [records.name(i) for i in sorted(spoiled)[: NAMES_IN_MESSAGE + 1]]
        masks += len(spoiled)
    total = sum(len(records) for _, records in inspected_splits)
    return (
        f"the masks look spoiled: {share:.1%} of their pixels hold {show(classes)}; the other values, {show(invented)},"
        f" lie on the borders between them, at most two pixels thick, as smoothing, resizing and JPEG leave them, in"
        f" {masks} of {total} masks: {listing(names, NAMES_IN_MESSAGE)}. {REPAIR}; --check-data --classes"
        f" {classes_example(classes)} lists these files, and --outside ignore after it trains without the other values"
    )
