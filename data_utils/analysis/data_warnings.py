"""Likely mistakes in a data set that is valid, a line each, for training and for --check-data alike.

A check is a function of what was found that gives its lines; `CHECKS` lists them in the order of the lines.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from data_utils.analysis.inspection import InspectedSplits, SplitInspection
from data_utils.analysis.label_sets import labeled_indices
from data_utils.analysis.point_warnings import point_warnings
from data_utils.bits import MOST_CLASSES, unpack_bits
from data_utils.class_map import ClassMap
from data_utils.class_names import is_background
from data_utils.config import OVERLAPPING, DataConfig
from data_utils.image_io.class_masks import LayeredMask
from data_utils.image_io.formats import RenderedMask
from data_utils.mask_values import as_grey, value_text
from data_utils.sources.placed import place_warnings
from data_utils.sources.records import Records, annotation_summaries, spread_indices
from data_utils.sources.volumes import voxel_size_warnings
from data_utils.targets.reader import TargetReader
from runtime.cache import digest, load_or_compute
from runtime.console import counted, listing
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, MaskValue

RARE = 1e-4  # a class with a smaller share of all pixels may be a mistake
FEW_IMAGES = 4  # fewer images, of both splits, are hardly a data set
USES = ("training", "validation")
CONSEQUENCES = ("which will not be learned", "which cannot be scored")  # of a class that a split lacks
MUCH_IGNORED = 0.2  # a larger share of ignored pixels may be a class
SMALL_NUMBER = 100  # classes of numbers are below it; grey levels, which are drawn to be looked at, reach 255
VALUES_IN_MESSAGE = 3
DEEP_MODES = ("I", "F", "uint16", "uint32", "int", "float")  # how modes of more than 8 bits begin
SPECK = 4  # the most pixels of an object whose coordinates are taken for much smaller ones: the corner of the image
SAMPLED_IMAGES = 32  # images of a split whose objects are compared
MIN_NOTABLE_SHARE = 0.01  # of the labeled pixels: a smaller one is the width of outlines
# the coordinates that each format of annotations has
COORDINATES = {
    "COCO": "pixels from the upper left corner",
    "labelme": "pixels from the upper left corner",
    "YOLO": "shares of width and height, 0 to 1",
    "GeoJSON": "longitude, then latitude, unless the file names its crs",
    "GeoPackage": "the units of its CRS",
}


@dataclass(frozen=True)
class Findings:
    """What was found in a data set.

    Args:
        inspected_splits: the splits whose files could be inspected.
        splits: all splits.
        pixels: how many pixels of the masks hold each value.
        has_names: whether the classes are named, by a flag or by the data set.
    """

    inspected_splits: InspectedSplits
    splits: Sequence[Records]
    pixels: dict[MaskValue, int]
    reader: TargetReader
    config: DataConfig
    has_names: bool

    @property
    def class_map(self) -> ClassMap | None:
        """The class of each value, if values are classes."""
        return self.reader.class_map

    @property
    def inspected_records(self) -> list[Records]:
        """The records of the splits that could be inspected."""
        return [records for _, records in self.inspected_splits]

    def masks_with(self, value: MaskValue) -> str:
        """The masks that hold a value, or a grey color's level: how many, and which is the first."""
        count = 0
        first = None
        for inspection, records in self.inspected_splits:
            numbers = []
            for number, content in enumerate(inspection.contents):
                if value in content.values or as_grey(value) in content.values:
                    numbers.append(number)
            members = np.flatnonzero(np.isin(inspection.members, numbers))
            count += len(members)
            if first is None and len(members):
                first = records.name(int(members[0]))
        return f"masks: {count}, the first is {first}"

    def rare_values(self) -> list[MaskValue]:
        """The values of classes without names that so few pixels hold that they may be mistakes."""
        if self.class_map is None or self.has_names:
            return []
        threshold = RARE * sum(self.pixels.values())
        rare = []
        for value in self.class_map.values:
            if self.pixels.get(value, 0) < threshold:
                rare.append(value)
        return rare


Check = Callable[[Findings], Iterator[str]]


def find_warnings(findings: Findings) -> tuple[str, ...]:
    """The lines of all checks."""
    lines: list[str] = []
    for check in CHECKS:
        lines += check(findings)
    return tuple(lines)


def mixed_binary_encodings(findings: Findings) -> Iterator[str]:
    """Masks of 0 and 1 beside masks of 0 and 255, which is then ignored. Masks that we render have one encoding."""
    if findings.class_map is None or findings.config.ignore_index:
        return
    for records in findings.inspected_records:
        if isinstance(records[0]["target"], RenderedMask):
            return
    contents: list[set[MaskValue]] = []
    for inspection, _ in findings.inspected_splits:
        contents += [set(content.values) for content in inspection.contents]
    all_values: set[MaskValue] = set().union(*contents)
    has_both = any({1, IGNORE_INDEX} <= values for values in contents)
    if all_values == {0, 1, IGNORE_INDEX} and not has_both:
        yield (
            f"some masks hold 1 ({findings.masks_with(1)}), others 255 ({findings.masks_with(IGNORE_INDEX)}), and none"
            " holds both: 255 is ignored now; if both mean one class, store it as the same value in all masks"
        )


def crowds(findings: Findings) -> Iterator[str]:
    """Objects of annotation files that are ignored."""
    summaries = annotation_summaries(findings.inspected_records)
    count = sum(summary.crowds for summary in summaries)
    if count:
        total = count
        for summary in summaries:
            total += sum(summary.instances.values())
        yield (
            f"{count} of {total} annotated objects are crowds (iscrowd 1), and their pixels count neither in the loss"
            " nor in the scores; some tools write what was painted with a brush as crowds: set iscrowd to 0 there"
        )


def objects_without_pixels(findings: Findings) -> Iterator[str]:
    """Annotated objects that lie outside of their images, or in a corner: their coordinates have another unit."""
    splits = findings.inspected_records
    summaries = annotation_summaries(splits)
    images = sum(summary.annotated + summary.empty for summary in summaries)
    has_problems = any(inspection.problems for inspection, _ in findings.inspected_splits)
    # where the numbers differ, some objects are left out
    if not summaries or has_problems or images not in (0, sum(map(len, splits))):
        return
    instances: Counter[str] = Counter()
    for summary in summaries:
        instances.update(summary.instances)
    covered_pixels = {}
    for value, name in splits[0].metadata.classes:
        covered_pixels[f"class {name}"] = findings.pixels.get(value, 0)
    counts = {f"class {name}": count for name, count in instances.items()}
    # masks of several classes, which may be some of the annotated ones alone
    if splits[0].metadata.task is not None:
        if findings.config.classes:
            return
        covered_pixels = {"all classes": sum(count for value, count in findings.pixels.items() if value)}
        counts = {"all classes": sum(instances.values())}
    texts: list[str] = []
    for name, covered in covered_pixels.items():
        count = counts.get(name, 0)
        if covered <= SPECK * count > 0:
            texts.append(f"the {count} annotated objects of {name} cover {covered} pixels in all")
    annotated = sum(summary.annotated for summary in summaries if summary.instances)
    blank = annotated
    for inspection, _ in findings.inspected_splits:
        for content, _, members in inspection.used_contents():
            if any(content.values):
                blank -= len(members)
    if blank > 0:
        texts.append(f"the masks of {blank} of {annotated} images with objects are empty")
    if texts:
        kind = summaries[0].format
        yield f"{listing(texts)}; coordinates of {kind} are {COORDINATES.get(kind, 'in pixels')}: are these?"


def resized_masks(findings: Findings) -> Iterator[str]:
    """Masks of another size than their images."""
    count = sum(inspection.resized_masks for inspection, _ in findings.inspected_splits)
    if count:
        total = sum(map(len, findings.inspected_records))
        yield (
            f"{count} of {total} masks have another size than their images but the same proportions: training"
            " resizes them, and scores use their own size"
        )


def mixed_depths(findings: Findings) -> Iterator[str]:
    """Images of 8 bits beside images of more bits, whose values differ as much as their ranges.

    There is no such warning on volumes: the type of their voxels says little of their values, and most are standardized
    one by one.
    """
    if any(records.dims == 3 for records in findings.inspected_records):
        return
    modes = sum((inspection.modes for inspection, _ in findings.inspected_splits), Counter())
    deep_modes = {mode for mode in modes if mode.startswith(DEEP_MODES)}
    if deep_modes and deep_modes < modes.keys():
        mode_list = ", ".join(f"{mode}: {count}" for mode, count in modes.most_common())
        yield f"images of 8 bits and of more bits are mixed ({mode_list}): store all with the same type"


def few_images(findings: Findings) -> Iterator[str]:
    """Splits of so few images or volumes that nothing can be learned or scored."""
    splits = findings.inspected_records
    lengths = list(map(len, splits))
    kind = "volume" if splits and splits[0].dims == 3 else "image"
    if findings.class_map is not None and 0 < sum(lengths) < FEW_IMAGES:
        counts = " and ".join(f"{length} for {use}" for length, use in zip(lengths, USES, strict=False))
        images = counted(sum(lengths), f"{kind} is", f"{kind}s are")
        yield (
            f"{images} very few ({counts}): the score will be luck; ten to thirty that look alike are a start"
            " (docs/preparing-masks.md#how-many-images)"
        )
    elif kind == "volume" and lengths[1:] == [1]:
        yield (
            "the score will be that of a single validation volume, much of it luck: --fold 1/5 to --fold 5/5 measure"
            " all (docs/data.md, Validation images)"
        )


def unlabeled_255(findings: Findings) -> Iterator[str]:
    """255, which often marks unlabeled pixels, as a class beside small numbers, or ignored in many pixels."""
    class_map = findings.class_map
    if class_map is None or findings.has_names or findings.config.ignore_index:
        return
    share = findings.pixels.get(IGNORE_INDEX, 0) / max(1, sum(findings.pixels.values()))
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


def classes_without_pixels(findings: Findings) -> Iterator[str]:
    """Classes that --classes names and no mask holds."""
    class_map = findings.class_map
    if class_map is None or not findings.config.classes:
        return
    present_indices = set()
    for value, count in findings.pixels.items():
        if count:
            present_indices.add(class_map.index_of(value))
    missing = []
    for index, name in enumerate(class_map.names):
        if index not in present_indices:
            missing.append(name)
    if missing:
        yield f"no mask holds {', '.join(missing)}, which --classes names: it will never be predicted; is it a mistake?"


def classes_without_score(findings: Findings) -> Iterator[str]:
    """Classes, except rare ones, that are in some training mask and in no validation mask."""
    class_map = findings.class_map
    # of images that are labeled for some classes, `never_labeled` says which cannot be scored
    if class_map is None or len(findings.inspected_splits) < 2:
        return
    if findings.inspected_records[1].metadata.label_sets:
        return
    in_training, in_validation = (_class_indices(part, class_map) for part, _ in findings.inspected_splits)
    rare = findings.rare_values()
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


def rare_classes(findings: Findings) -> Iterator[str]:
    """Classes found in the masks with so few pixels that they may be mistakes."""
    rare = findings.rare_values()
    if rare:
        texts = []
        for value in rare[: VALUES_IN_MESSAGE + 1]:
            count = findings.pixels.get(value, 0)
            texts.append(f"{value_text(value)} (pixels: {count}; {findings.masks_with(value)})")
        yield (
            f"rare mask values, each less than {RARE:.2%} of all mask pixels, became classes:"
            f" {listing(texts, VALUES_IN_MESSAGE)}; if they are mistakes, name the real classes with"
            " --classes, or give one value to ignore with --ignore-index"
        )


def unlisted_images(findings: Findings) -> Iterator[str]:
    """Images that a `classes.csv` does not list."""
    names: list[str] = []
    for records in findings.inspected_records:
        names += records.metadata.unlisted
    if names:
        images = counted(len(names), "image has", "images have")
        yield f"{images} no row in classes.csv, which means labeled for all classes: {listing(names)}"


def unlabeled_images(findings: Findings) -> Iterator[str]:
    """Images that are labeled for no class."""
    names: list[str] = []
    for inspection, records in findings.inspected_splits:
        if not records.metadata.label_sets:
            continue
        for i in np.flatnonzero(inspection.members >= 0).tolist():
            if not labeled_indices(findings.reader, records.label_set(i)):
                names.append(records.name(i))
    if names:
        images = counted(len(names), "image is", "images are")
        yield f"{images} labeled for no class, useless for training and scores: {listing(names)}"


def never_labeled(findings: Findings) -> Iterator[str]:
    """Classes that no training image, or no validation image, is labeled for."""
    reader = findings.reader
    has_labels = any(records.metadata.label_sets for records in findings.inspected_records)
    if len(findings.inspected_splits) < 2 or not has_labels:
        return
    for (inspection, _), use, consequence in zip(findings.inspected_splits, USES, CONSEQUENCES, strict=True):
        labeled: set[int] = set()
        for content, _, _ in inspection.used_contents():
            labeled.update(labeled_indices(reader, content.labeled_for))
        missing = []
        for index, name in enumerate(reader.class_names):
            if index not in labeled and index != reader.background:
                missing.append(name)
        if missing:
            yield f"no {use} image is labeled for {listing(missing)}, {consequence}"


def covered_objects(findings: Findings) -> Iterator[str]:
    """Annotated objects that cover each other: a mask with one class per pixel shows only the uppermost object."""
    shared_pixels = 0
    labeled_pixels = 0
    for records in findings.splits:
        if len(records) and isinstance(records[0]["target"], LayeredMask):
            key = records.digest and digest("overlaps", records.digest)
            shared, labeled = load_or_compute(key, partial(_shared_pixels, records))
            shared_pixels += shared
            labeled_pixels += labeled
    if shared_pixels > MIN_NOTABLE_SHARE * labeled_pixels:
        yield (
            f"{shared_pixels / labeled_pixels:.0%} of the labeled pixels lie in objects of several classes, and count"
            f" as the uppermost one; --task {OVERLAPPING} learns all classes of a pixel"
        )


def _shared_pixels(records: Records) -> list[int]:
    """How many pixels of some images have several classes, and how many have any."""
    classes = [value for value, name in records.metadata.classes if not is_background(name)]
    bit_by_value: dict[MaskValue, int] = {value: bit % MOST_CLASSES for bit, value in enumerate(classes)}
    shared_pixels = 0
    labeled_pixels = 0
    for index in spread_indices(len(records), SAMPLED_IMAGES):
        mask = records[index]["target"]
        assert isinstance(mask, LayeredMask)
        try:
            truth, _ = unpack_bits(mask.render_classes(bit_by_value))
        except DataError:  # the error is reported where all masks are read
            continue
        shared_pixels += int(np.count_nonzero(truth & (truth - 1)))
        labeled_pixels += int(np.count_nonzero(truth))
    return [shared_pixels, labeled_pixels]


def _places(findings: Findings) -> Iterator[str]:
    yield from place_warnings(findings.splits)
    yield from voxel_size_warnings(findings.splits)


def _targets(findings: Findings) -> Iterator[str]:
    yield from findings.reader.warnings(findings.splits)
    if findings.reader.takes_points:
        yield from point_warnings(findings.inspected_splits, findings.reader.sided_pairs)


CHECKS: tuple[Check, ...] = (
    mixed_binary_encodings,
    crowds,
    objects_without_pixels,
    resized_masks,
    mixed_depths,
    few_images,
    unlabeled_255,
    classes_without_pixels,
    classes_without_score,
    rare_classes,
    unlisted_images,
    unlabeled_images,
    never_labeled,
    covered_objects,
    _places,
    _targets,
)
