"""Warnings about masks and images that are valid but look like mistakes."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from data_utils.analysis.inspection import InspectedSplits, SplitInspection
from data_utils.class_map import ClassMap
from data_utils.image_io.formats import RenderedMask
from data_utils.mask_values import as_grey, value_text
from data_utils.sources.records import annotation_summaries
from runtime.console import counted, listing
from unet.config import IGNORE_INDEX, MaskValue

RARE = 1e-4  # a class with a smaller share of all pixels may be a mistake
FEW_IMAGES = 4  # fewer images, of both splits, are hardly a data set
USES = ("training", "validation")
MUCH_IGNORED = 0.2  # a larger share of ignored pixels may be a class
SMALL_NUMBER = 100  # classes of numbers are below it; grey levels, which are drawn to be looked at, reach 255
VALUES_IN_MESSAGE = 3
DEEP_MODES = ("I", "F", "uint16", "uint32", "int", "float")  # how modes of more than 8 bits begin
SPECK = 4  # the most pixels of an object whose coordinates are taken for much smaller ones: the corner of the image
# the coordinates that each format of annotations has
COORDINATES = {
    "COCO": "pixels from the upper left corner",
    "labelme": "pixels from the upper left corner",
    "YOLO": "shares of width and height, 0 to 1",
    "GeoJSON": "longitude, then latitude, unless the file names its crs",
    "GeoPackage": "the units of its CRS",
}


def label_warnings(
    inspected_splits: InspectedSplits,
    pixels: dict[MaskValue, int],
    class_map: ClassMap | None,
    *,
    has_names: bool,
    ignores_values: bool,
    has_flag: bool,
) -> tuple[str, ...]:
    """Warnings, a line each, about masks and images; without a class map, only the warnings about files.

    Args:
        pixels: how many pixels of the masks hold each value.
        has_names: whether the classes are named, by a flag or by the data set.
        ignores_values: whether a flag says which values are ignored.
        has_flag: whether a flag, not the data set itself, names the classes.
    """
    lines: list[str] = []
    if class_map is not None and not ignores_values:
        lines += _mixed_binary_encodings(inspected_splits)
    lines += _crowds(inspected_splits)
    lines += _objects_without_pixels(inspected_splits, pixels, has_flag)
    lines += _resized_masks(inspected_splits)
    lines += _mixed_depths(inspected_splits)
    if class_map is not None:
        lines += _few_images(inspected_splits)
        rare: list[MaskValue] = []
        if not has_names:
            threshold = RARE * sum(pixels.values())
            rare = [value for value in class_map.values if pixels.get(value, 0) < threshold]
        if not has_names and not ignores_values:
            lines += _unlabeled_255(pixels, class_map)
        lines += _classes_without_pixels(pixels, class_map, has_flag)
        lines += _classes_without_score(inspected_splits, class_map, rare)
        lines += _rare_classes(inspected_splits, pixels, rare)
    return tuple(lines)


def _few_images(inspected_splits: InspectedSplits) -> Iterator[str]:
    """Splits of so few images that nothing can be learned or scored."""
    total = sum(len(records) for _, records in inspected_splits)
    if 0 < total < FEW_IMAGES:
        counts = " and ".join(
            f"{len(records)} for {use}" for (_, records), use in zip(inspected_splits, USES, strict=False)
        )
        images = counted(total, "image is", "images are")
        yield (
            f"{images} very few ({counts}): the score will be luck; ten to thirty that look alike are a start"
            " (docs/preparing-masks.md#how-many-images)"
        )


def _unlabeled_255(pixels: dict[MaskValue, int], class_map: ClassMap) -> Iterator[str]:
    """255, which often marks unlabeled pixels, as a class beside small numbers, or ignored in many pixels."""
    share = pixels.get(IGNORE_INDEX, 0) / max(1, sum(pixels.values()))
    other_values = [value for value in class_map.values if isinstance(value, int) and value != IGNORE_INDEX]
    if class_map.ignore_value == IGNORE_INDEX and share > MUCH_IGNORED:
        yield (
            f"255 counts nowhere, as unlabeled, and {share:.0%} of all mask pixels hold it; if it is a class, name all"
            " classes with --classes"
        )
    elif IGNORE_INDEX in class_map.values and len(other_values) > 1 and max(other_values) < SMALL_NUMBER:
        yield (
            f"255 became a class, with {share:.0%} of all mask pixels; if it means unlabeled, give --ignore-index 255"
        )


def _classes_without_pixels(pixels: dict[MaskValue, int], class_map: ClassMap, has_flag: bool) -> Iterator[str]:
    """Classes that --classes names and no mask holds."""
    if not has_flag:
        return
    present_indices = {class_map.index_of(value) for value, count in pixels.items() if count}
    missing = [name for index, name in enumerate(class_map.names) if index not in present_indices]
    if missing:
        yield f"no mask holds {', '.join(missing)}, which --classes names: it will never be predicted; is it a mistake?"


def _rare_classes(
    inspected_splits: InspectedSplits, pixels: dict[MaskValue, int], rare: Sequence[MaskValue]
) -> Iterator[str]:
    """Classes found in the masks with so few pixels that they may be mistakes."""
    if rare:
        descriptions = []
        for value in rare[:VALUES_IN_MESSAGE]:
            masks = _masks_with(value, inspected_splits)
            descriptions.append(f"{value_text(value)} (pixels: {pixels.get(value, 0)}; {masks})")
        if len(rare) > VALUES_IN_MESSAGE:
            descriptions.append("...")
        yield (
            f"rare mask values, each less than {RARE:.2%} of all mask pixels, became classes:"
            f" {', '.join(descriptions)}; if they are mistakes, name the real classes with"
            " --classes, or give one value to ignore with --ignore-index"
        )


def _classes_without_score(
    inspected_splits: InspectedSplits, class_map: ClassMap, rare: Sequence[MaskValue]
) -> Iterator[str]:
    """Classes, except `rare` ones, that are in some training mask and in no validation mask."""
    if len(inspected_splits) < 2:
        return
    (training, _), (validation, validation_records) = inspected_splits
    if validation_records.metadata.label_sets:  # `label_set_warnings` says which classes cannot be scored
        return
    in_training = _class_indices(training, class_map)
    in_validation = _class_indices(validation, class_map)
    missing = []
    for index, (value, name) in enumerate(zip(class_map.values, class_map.names, strict=True)):
        if value not in rare and index in in_training and index not in in_validation:
            missing.append(name)
    if missing:
        yield (
            f"no validation mask holds {', '.join(missing)}, which cannot be scored; choose the validation images"
            " yourself (a val folder), or use --fold"
        )


def _class_indices(inspection: SplitInspection, class_map: ClassMap) -> set[int | None]:
    """The classes that the usable masks of a split hold, by their indices."""
    indices: set[int | None] = set()
    for content, _, _ in inspection.used_contents():
        indices.update(map(class_map.index_of, content.values))
    return indices


def _masks_with(value: MaskValue, inspected_splits: InspectedSplits) -> str:
    """The masks that hold a value: how many, and which is the first."""
    count = 0
    first = None
    for inspection, records in inspected_splits:
        members = np.flatnonzero(np.isin(inspection.members, _contents_with(value, inspection)))
        count += len(members)
        if first is None and len(members):
            first = records.name(int(members[0]))
    return f"masks: {count}, the first is {first}"


def _contents_with(value: MaskValue, inspection: SplitInspection) -> list[int]:
    """The indices of the contents that hold a value; a grey color is also found as its grey level."""
    indices = []
    for index, content in enumerate(inspection.contents):
        if value in content.values or as_grey(value) in content.values:
            indices.append(index)
    return indices


def _mixed_binary_encodings(inspected_splits: InspectedSplits) -> Iterator[str]:
    """Masks of 0 and 1 beside masks of 0 and 255, which is then ignored. Masks that we render have one encoding."""
    if any(isinstance(records[0]["target"], RenderedMask) for _, records in inspected_splits):
        return
    contents: list[set[MaskValue]] = []
    for inspection, _ in inspected_splits:
        contents += [set(content.values) for content in inspection.contents]
    all_values: set[MaskValue] = set().union(*contents)
    if all_values == {0, 1, IGNORE_INDEX} and not any({1, IGNORE_INDEX} <= values for values in contents):
        yield (
            f"some masks hold 1 ({_masks_with(1, inspected_splits)}), others 255"
            f" ({_masks_with(IGNORE_INDEX, inspected_splits)}), and none holds both: 255 is"
            " ignored now; if both mean one class, store it as the same value in all masks"
        )


def _crowds(inspected_splits: InspectedSplits) -> Iterator[str]:
    """Objects of annotation files that are ignored."""
    summaries = annotation_summaries(records for _, records in inspected_splits)
    crowds = sum(summary.crowds for summary in summaries)
    if crowds:
        total = crowds + sum(sum(summary.instances.values()) for summary in summaries)
        yield (
            f"{crowds} of {total} annotated objects are crowds (iscrowd 1), and their pixels count neither in the loss"
            " nor in the scores; some tools write what was painted with a brush as crowds: set iscrowd to 0 there"
        )


def _objects_without_pixels(
    inspected_splits: InspectedSplits, pixels: dict[MaskValue, int], has_flag: bool
) -> Iterator[str]:
    """Annotated objects that lie outside of their images, or in a corner: their coordinates have another unit."""
    splits = [records for _, records in inspected_splits]
    summaries = annotation_summaries(splits)
    counted = sum(summary.annotated + summary.empty for summary in summaries)
    has_problems = any(inspection.problems for inspection, _ in inspected_splits)
    if not summaries or has_problems or counted not in (0, sum(map(len, splits))):  # some objects are left out
        return
    instances: Counter[str] = Counter()
    for summary in summaries:
        instances.update(summary.instances)
    covered_pixels = {f"class {name}": pixels.get(value, 0) for value, name in splits[0].metadata.classes}
    counts = {f"class {name}": count for name, count in instances.items()}
    if splits[0].metadata.task is not None:  # masks of several classes, which may be some of the annotated ones alone
        if has_flag:
            return
        covered_pixels = {"all classes": sum(count for value, count in pixels.items() if value)}
        counts = {"all classes": sum(instances.values())}
    texts: list[str] = []
    for name, covered in covered_pixels.items():
        count = counts.get(name, 0)
        if covered <= SPECK * count > 0:
            texts.append(f"the {count} annotated objects of {name} cover {covered} pixels in all")
    annotated = sum(summary.annotated for summary in summaries if summary.instances)
    blank = annotated - _images_with_pixels(inspected_splits)
    if blank > 0:
        texts.append(f"the masks of {blank} of {annotated} images with objects are empty")
    if texts:
        kind = summaries[0].format
        yield f"{listing(texts)}; coordinates of {kind} are {COORDINATES.get(kind, 'in pixels')}: are these?"


def _images_with_pixels(inspected_splits: InspectedSplits) -> int:
    """How many masks hold any value but 0."""
    count = 0
    for inspection, _ in inspected_splits:
        for content, _, members in inspection.used_contents():
            if any(content.values):
                count += len(members)
    return count


def _resized_masks(inspected_splits: InspectedSplits) -> Iterator[str]:
    """Masks of another size than their images."""
    count = sum(inspection.resized_masks for inspection, _ in inspected_splits)
    if count:
        total = sum(len(records) for _, records in inspected_splits)
        yield (
            f"{count} of {total} masks have another size than their images but the same proportions: training"
            " resizes them, and scores use their own size"
        )


def _mixed_depths(inspected_splits: InspectedSplits) -> Iterator[str]:
    """Images of 8 bits beside images of more bits, whose values differ as much as their ranges.

    There is no such warning on volumes: the type of their voxels says little of their values, and most are standardized
    one by one.
    """
    if any(records.dims == 3 for _, records in inspected_splits):
        return
    modes = sum((inspection.modes for inspection, _ in inspected_splits), Counter())
    deep_modes = {mode for mode in modes if mode.startswith(DEEP_MODES)}
    if deep_modes and deep_modes < modes.keys():
        mode_list = ", ".join(f"{mode}: {count}" for mode, count in modes.most_common())
        yield f"images of 8 bits and of more bits are mixed ({mode_list}): store all with the same type"
