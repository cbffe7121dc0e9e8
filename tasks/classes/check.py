"""Likely mistakes in masks of classes, a line each; a check is a function of what was found in a data set."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from data_utils.analysis.findings import Check, Findings
from data_utils.bits import MOST_CLASSES, unpack_bits
from data_utils.class_map import MOST_IN_MASK
from data_utils.class_names import is_background
from data_utils.config import OVERLAPPING
from data_utils.image_io.formats import RenderedMask
from data_utils.mask_values import as_grey, show, value_text
from data_utils.sources.annotations.drawn import DrawnMask
from data_utils.sources.records import Records, spread_indices
from runtime.cache import digest, load_or_compute
from runtime.console import listing
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, MaskValue

RARE = 1e-4  # a class with a smaller share of all pixels may be a mistake
MUCH_IGNORED = 0.2  # a larger share of ignored pixels may be a class
SMALL_NUMBER = 100  # classes of numbers are below it; grey levels, which are drawn to be looked at, reach 255
VALUES_IN_MESSAGE = 3
SAMPLED_IMAGES = 32  # images of a split whose objects are compared
MIN_NOTABLE_SHARE = 0.01  # of the labeled pixels: a smaller one is the width of outlines


def mixed_binary_encodings(findings: Findings) -> Iterator[str]:
    """Masks of 0 and 1 beside masks of 0 and 255, which is then ignored. Masks that we render have one encoding."""
    class_map = findings.class_map
    is_ignored = class_map is not None and class_map.index_of(IGNORE_INDEX) == IGNORE_INDEX
    if findings.data.config.ignore_index or not is_ignored:
        return
    for records in findings.records:
        if isinstance(records[0]["target"], RenderedMask):
            return
    contents: list[set[MaskValue]] = []
    for split in findings.splits:
        contents += [set(content.values) for content, _, _ in split.used_contents()]
    all_values: set[MaskValue] = set().union(*contents)
    has_both = any({1, IGNORE_INDEX} <= values for values in contents)
    if all_values == {0, 1, IGNORE_INDEX} and not has_both:
        yield (
            f"some masks hold 1 ({masks_with(findings, 1)}), others 255 ({masks_with(findings, IGNORE_INDEX)}), and"
            " none holds both: 255 is ignored now; if both mean one class, store it as the same value in all masks"
        )


def unlabeled_255(findings: Findings) -> Iterator[str]:
    """255, which often marks unlabeled pixels, as a class beside small numbers, or ignored in many pixels."""
    class_map = findings.class_map
    if class_map is None or findings.data.classes or findings.data.config.ignore_index:
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


def unwritable_values(findings: Findings) -> Iterator[str]:
    """Values of classes that predict.py cannot write."""
    unwritable = findings.class_map.unwritable if findings.class_map else []
    if unwritable:
        yield (
            f"predict.py cannot write the mask values {show(unwritable)}: a mask that it writes holds 0 to"
            f" {MOST_IN_MASK}; store other numbers, such as 0, 1, 2, or give"
            f" --ignore-index={','.join(map(value_text, unwritable))} if nobody labeled these pixels"
        )


def absent_classes(findings: Findings) -> Iterator[str]:
    """Classes that --classes names and no mask holds, and those of one split alone, unless rare in training."""
    class_map = findings.class_map
    if class_map is None:
        return
    present: list[set[int | None]] = []  # the classes that the masks of each split hold
    for split in findings.splits:
        values = set().union(*(content.values for content, _, _ in split.used_contents()))
        present.append(set(map(class_map.index_of, values)))
    numbered_names = list(enumerate(class_map.names))
    if findings.data.config.classes:
        of_all_masks = set(map(class_map.index_of, findings.pixels))
        missing = [name for index, name in numbered_names if index not in of_all_masks]
        if missing:
            yield (
                f"no mask holds {', '.join(missing)}, which --classes names: it will never be predicted; is it a"
                " mistake?"
            )
    # of images that are labeled for some classes, another check says which cannot be scored
    if len(present) < 2 or findings.records[1].metadata.label_sets:
        return
    rare = set(map(class_map.index_of, rare_values(findings)))
    if not findings.data.train.is_stream:  # of a stream only a sample is read
        unlearned = [name for index, name in numbered_names if index in present[1] - present[0]]
        if unlearned:
            yield f"no training mask holds {', '.join(unlearned)}, which cannot be learned; is it a mistake?"
    unscored = [name for index, name in numbered_names if index in present[0] - present[1] - rare]
    if unscored:
        yield (
            f"no validation mask holds {', '.join(unscored)}, which cannot be scored; choose the validation"
            f" {findings.records[1].image_kind}s yourself (a val folder), or use --fold"
        )


def rare_classes(findings: Findings) -> Iterator[str]:
    """Classes found in the masks with so few pixels that they may be mistakes."""
    texts = []
    for value in rare_values(findings):
        count = findings.pixels.get(value, 0)
        texts.append(f"{value_text(value)} (pixels: {count}; {masks_with(findings, value)})")
    if texts:
        yield (
            f"rare mask values, each less than {RARE:.2%} of all mask pixels, became classes:"
            f" {listing(texts, VALUES_IN_MESSAGE)}; if they are mistakes, name the real classes with"
            " --classes, or give one value to ignore with --ignore-index"
        )


def rare_values(findings: Findings) -> list[MaskValue]:
    """The values of classes without names that so few pixels hold that they may be mistakes."""
    if findings.class_map is None or findings.data.classes:
        return []
    threshold = RARE * sum(findings.pixels.values())
    return [value for value in findings.class_map.values if findings.pixels.get(value, 0) < threshold]


def masks_with(findings: Findings, value: MaskValue) -> str:
    """The masks that hold a value, or a grey color's level: how many, and which is the first."""
    count = 0
    first = ""
    for split in findings.splits:
        indices: list[int] = []
        for content, _, members in split.used_contents():
            if value in content.values or as_grey(value) in content.values:
                indices += members.tolist()
        if indices and not count:
            first = split.records.name(min(indices))
        count += len(indices)
    return f"masks: {count}, the first is {first}"


def covered_objects(findings: Findings) -> Iterator[str]:
    """Annotated objects that cover each other: a mask with one class per pixel shows only the uppermost object."""
    shared_pixels = 0
    labeled_pixels = 0
    for records in findings.records:
        if len(records) and isinstance(records[0]["target"], DrawnMask):
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
        assert isinstance(mask, DrawnMask)
        try:
            truth, _ = unpack_bits(mask.render_classes(bit_by_value))
        except DataError:  # the error is reported where all masks are read
            continue
        shared_pixels += int(np.count_nonzero(truth & (truth - 1)))
        labeled_pixels += int(np.count_nonzero(truth))
    return [shared_pixels, labeled_pixels]


CHECKS: tuple[Check, ...] = (
    mixed_binary_encodings,
    unlabeled_255,
    unwritable_values,
    absent_classes,
    rare_classes,
    covered_objects,
)


def check_classes(findings: Findings) -> Iterator[str]:
    """The lines of all checks."""
    for check in CHECKS:
        yield from check(findings)
