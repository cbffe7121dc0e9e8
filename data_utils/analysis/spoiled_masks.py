"""Masks whose borders hold values invented by smoothing, resizing or JPEG, which are not classes."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from data_utils.analysis.inspection import Content, InspectedSplits, SplitInspection, mask_value_from_json
from data_utils.class_names import classes_example
from data_utils.image_io.formats import VolumeFile, WindowSource
from data_utils.image_io.reader import decode_mask, is_drawn_in_alpha, read_palette_mask
from data_utils.image_io.volumes import read_label_volume
from data_utils.image_io.windowed import open_if_large, strips
from data_utils.invented_values import REPAIR
from data_utils.mask_values import (
    MANY_VALUES,
    count_colors,
    count_values,
    has_colors,
    is_run,
    is_scattered,
    pack,
    show,
    sort_values,
    value_text,
)
from data_utils.sources.records import Record
from runtime.cache import JSON, digest, load_or_compute
from runtime.console import listing
from runtime.errors import DataError
from unet.config import MaskValue

MASKS = 64  # masks of a split that are read again
VOLUMES = 8
MASKS_WITH_VALUE = 4  # masks of each set of values that are read before another set has its second turn
REACH = 2  # the pixels to each side among which the neighbors of a border lie
MOST_REPEATED = 32  # times that a row or column is repeated; farther changes are those of large shapes
INVENTED_SHARE = 0.6  # the least share of an invented value's pixels between two others; the rest are ringing
NEARLY_ALL = 0.8  # of the values that form no areas: thin classes lie between others by chance, and fewer do
AREA_SHARE = 0.5  # the least share of a class's pixels in areas at least three pixels thick
MIN_BORDER_VALUES = 2  # a single value on a border may be a class that somebody drew there
NAMES_IN_MESSAGE = 3  # masks that a message names
PALETTES = 8  # masks of a split whose palettes are looked at
ALONE_SHARE = 0.05  # from this share on, pixels without a neighbor of their color are dots of dithering
MANY_INVENTED = 8  # the least values on borders that make a run 0, 1, ..., n, or very many classes, doubtful
RARE_SHARE = 0.01  # of all pixels: values that only lie on borders hold less
MIN_CLASS_SHARE = 0.5  # if classes hold a smaller share of the pixels, the other values are more than borders


@dataclass
class BorderCounts:
    """How many pixels hold each value, in all, on borders, and in areas.

    Args:
        pixels: value -> all its pixels.
        between: value -> its pixels in no area three pixels thick whose neighbors hold both lower and higher values.
        areas: value -> its pixels in areas at least three pixels thick.
    """

    pixels: Counter
    between: Counter
    areas: Counter

    @classmethod
    def empty(cls) -> "BorderCounts":
        """Empty counts."""
        return cls(Counter(), Counter(), Counter())

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

        Where many values have gaps, which no resizing leaves, these others may be fewer than the values of areas.

        Args:
            insists: whether somebody says that all values are classes, so that nearly all others must lie so.
        """
        pixels, between, areas = self.pixels, self.between, self.areas
        if has_colors(pixels):  # grey levels, from masks or strips without other colors, are colors too
            pixels, between, areas = map(count_colors, (pixels, between, areas))
        classes = [value for value, count in pixels.items() if areas[value] >= AREA_SHARE * count]
        thin = pixels.keys() - set(classes)
        invented = sum(between[value] >= INVENTED_SHARE * pixels[value] for value in thin)
        are_most = invented >= len(classes)
        are_nearly_all = invented >= NEARLY_ALL * len(thin)
        if insists:
            is_spoiled = are_most and are_nearly_all
        elif is_scattered(pixels):
            is_spoiled = are_most or (invented >= MANY_INVENTED and are_nearly_all)
        else:
            is_spoiled = are_most
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
    for axis in (0, 1):
        length = channels.shape[axis]
        padding = [(0, 0)] * channels.ndim
        padding[axis] = (reach, reach)
        padded = np.pad(channels, padding, mode="edge")
        result = channels
        for start in range(2 * reach + 1):
            window = [slice(None)] * channels.ndim
            window[axis] = slice(start, start + length)
            result = extreme(result, padded[tuple(window)])
        channels = result
    return channels


def _count_where(mask: np.ndarray, is_chosen: np.ndarray) -> dict[MaskValue, int]:
    """Pixels of each value among the chosen ones of a mask."""
    values = mask[is_chosen]
    if not len(values):
        return {}
    return count_values(values[:, None])


def check_masks(inspected_splits: InspectedSplits, pixels: dict[MaskValue, int], *, insists: bool = False) -> None:
    """Raises DataError if masks whose values are classes without names look spoiled.

    Args:
        pixels: how many pixels of the masks hold each value.
        insists: whether a flag says that the values are classes.
    """
    check_palettes(inspected_splits, pixels)
    check_borders(inspected_splits, pixels, insists=insists)
    check_transparency(inspected_splits, pixels)


def check_borders(inspected_splits: InspectedSplits, pixels: dict[MaskValue, int], *, insists: bool = False) -> None:
    """Raises DataError if the masks hold values that smoothing, resizing or JPEG has invented on the borders of others.

    Args:
        pixels: how many pixels of the masks hold each value; none of them has a name.
        insists: whether a flag says that the values are classes.
    """
    is_numbered = is_run(pixels) and len(pixels) <= MANY_VALUES
    if len(pixels) < 2 + MIN_BORDER_VALUES or is_numbered:
        return
    likely, certain = _once("values on borders", inspected_splits, _classes)
    if certain or (likely and not insists):
        classes = sort_values(map(mask_value_from_json, likely))
        remedy = "name all of them with --classes" if certain else "give --task classes"
        raise DataError(f"{_describe(inspected_splits, pixels, classes)}. If all values are classes, {remedy}")


def border_warnings(inspected_splits: InspectedSplits, pixels: dict[MaskValue, int]) -> tuple[str, ...]:
    """A warning where most values of a run 0, 1, ..., n are rare and lie on borders: `check_borders` lets runs pass."""
    rare = [value for value in pixels if pixels[value] < RARE_SHARE * sum(pixels.values())]
    has_many = len(rare) >= max(MANY_INVENTED, 2 * (len(pixels) - len(rare)))
    if not is_run(pixels) or len(pixels) > MANY_VALUES or not has_many:
        return ()
    class_values, _ = _once("values on borders", inspected_splits, _classes)
    classes = sort_values(map(mask_value_from_json, class_values))
    count = len(pixels) - len(classes)
    if not classes or count < max(MANY_INVENTED, 2 * len(classes)):
        return ()
    return (
        f"{count} of the {len(pixels)} mask values lie only on the borders between {show(classes)}, at most two"
        " pixels thick, as smoothing and resizing leave them; if they are no classes, see"
        f" docs/preparing-masks.md#no-smoothed-edges, or give --classes {classes_example(classes)} --outside ignore",
    )


def check_palettes(inspected_splits: InspectedSplits, pixels: dict[MaskValue, int]) -> None:
    """Raises DataError if masks of indices into a palette have its colors from a smoothed or dithered picture.

    `check_borders` looks at the numbers, which mean nothing in a palette: an encoder may order it in any way.

    Args:
        pixels: how many pixels of the masks hold each index; none of them has a name.
    """
    if len(pixels) < 2 + MIN_BORDER_VALUES:
        return
    reason = _once("palettes", inspected_splits, _spoiled_palette)
    if reason:
        raise DataError(f"the masks look spoiled: {reason}. {REPAIR}. If all colors are classes, name their numbers")


def _spoiled_palette(inspected_splits: InspectedSplits) -> str:
    """The mistake in the colors of masks of indices, with the first such mask; empty if there is none."""
    counts = BorderCounts.empty()
    alone_pixels = 0
    name = ""
    for record in _sampled_pictures(inspected_splits):
        colors = read_palette_mask(record["target"], record["name"])
        if colors is not None:
            name = name or record["name"]
            counts.add(colors)
            alone_pixels += _count_alone(colors)
    total = sum(counts.pixels.values())
    if not total:
        return ""
    classes = sort_values(counts.classes())
    if not classes and alone_pixels < ALONE_SHARE * total:
        return ""
    if not classes:
        return (
            f"they are stored with a palette, and {alone_pixels / total:.1%} of their pixels differ from all four"
            f" neighbors, as dithering leaves them: {name}"
        )
    share = sum(counts.pixels[value] for value in classes) / total
    invented = len(counts.pixels) - len(classes)
    return (
        f"they are stored with a palette, and {share:.1%} of their pixels have the colors {show(classes)}; the others,"
        f" {invented} colors, lie on the borders between them, as smoothing leaves them: {name}"
    )


def _count_alone(colors: np.ndarray) -> int:
    """How many pixels of (H, W, 3) have the color of none of their four neighbors."""
    keys = np.pad(pack(colors).astype(np.int64), 1, constant_values=-1)
    center = keys[1:-1, 1:-1]
    has_equal = (center == keys[:-2, 1:-1]) | (center == keys[2:, 1:-1])
    has_equal |= (center == keys[1:-1, :-2]) | (center == keys[1:-1, 2:])
    return int((~has_equal).sum())


def check_transparency(inspected_splits: InspectedSplits, pixels: dict[MaskValue, int]) -> None:
    """Raises DataError if all masks hold one value, and their areas are only drawn in the alpha channel."""
    if len(pixels) != 1:
        return
    for record in _sampled_pictures(inspected_splits):
        name = record["name"]
        if is_drawn_in_alpha(record["target"], name):
            raise DataError(
                f"the masks hold {show(pixels)} alone, but {name} is transparent in places: is the mask its alpha"
                ' channel? Save that as the mask, with Pillow: Image.open(FILE).getchannel("A").point(lambda alpha:'
                " 255 * (alpha > 127)).save(FILE)"
            )


def _once(title: str, inspected_splits: InspectedSplits, compute: Callable[[InspectedSplits], JSON]) -> JSON:
    """The results of `compute` for the splits; they are cached under the title if every split has a digest."""
    digests = [records.digest for _, records in inspected_splits]
    key = digest(title, *digests) if all(digests) else None
    return load_or_compute(key, lambda: compute(inspected_splits))


def _sampled_pictures(inspected_splits: InspectedSplits) -> Iterator[Record]:
    """Some records of images whose masks are read whole."""
    for inspection, records in inspected_splits:
        if inspection.dims == 3:
            continue
        for i in _sample(inspection, PALETTES):
            record = records[i]
            if not isinstance(record["target"], WindowSource):
                yield record


def _classes(inspected_splits: InspectedSplits) -> tuple[list[MaskValue], list[MaskValue]]:
    """The classes that `BorderCounts` finds in some masks of the splits, and those that it finds against a flag."""
    counts = BorderCounts.empty()
    for inspection, records in inspected_splits:
        for i in _sample(inspection, VOLUMES if inspection.dims == 3 else MASKS):
            for mask in mask_planes(records[i]):
                counts.add(mask)
    return counts.classes(), counts.classes(insists=True)


def _sample(inspection: SplitInspection, most: int) -> list[int]:
    """The indices of at most `most` records: some for each set of mask values, sets of three or more values first."""
    members_by_content = {content: members.tolist() for content, _, members in inspection.used_contents()}
    first: list[int] = []
    later_indices: list[int] = []
    for content in sorted(members_by_content, key=_value_count, reverse=True):
        first += members_by_content[content][:MASKS_WITH_VALUE]
        later_indices += members_by_content[content][MASKS_WITH_VALUE:]
    return (first + later_indices)[:most]


def _value_count(content: Content) -> int:
    return len(content.values)


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
    ordered = sort_values(pixels)
    invented = sort_values(pixels.keys() - set(classes))
    names = []
    masks = 0
    for inspection, records in inspected_splits:
        spoiled: list[int] = []
        for content, _, members in inspection.used_contents():
            if not set(content.values) <= set(classes):
                spoiled += members.tolist()
        names += [records[i]["name"] for i in sorted(spoiled)[: NAMES_IN_MESSAGE + 1]]
        masks += len(spoiled)
    total = sum(len(records) for _, records in inspected_splits)
    files = f"{masks} of {total} masks: {listing(names, NAMES_IN_MESSAGE)}"
    if share < MIN_CLASS_SHARE:
        return (
            f"the masks look spoiled: they hold {len(pixels)} grades from {value_text(ordered[0])} to"
            f" {value_text(ordered[-1])}, as probabilities and blurred outlines do, in {files}. Save what is above a"
            " threshold, such as half of the highest value, as 255 and the rest as 0, see"
            " docs/preparing-masks.md#no-smoothed-edges"
        )
    return (
        f"the masks look spoiled: {share:.1%} of their pixels hold {show(classes)}; the other values, {show(invented)},"
        f" lie on the borders between them, at most two pixels thick, as smoothing, resizing and JPEG leave them, in"
        f" {files}. {REPAIR}; --check-data --classes"
        f" {classes_example(classes)} lists these files, and --outside ignore after it trains without the other values"
    )
