"""Images that are labeled for some classes only: the meaning of their label files, and likely mistakes in them."""

from collections.abc import Collection, Iterator

import numpy as np

from data_utils.analysis.inspection import InspectedSplits, pixels_by_labels
from data_utils.class_names import NamedClasses
from data_utils.sources.records import LabelSet
from data_utils.targets.reader import TargetReader
from runtime.console import counted, listing


def read_labels(reader: TargetReader, inspected_splits: InspectedSplits) -> TargetReader:
    """The reader that also knows which classes each image is labeled for; unchanged if all images have all labels."""
    place_by_set: dict[LabelSet, str] = {}
    file_classes: NamedClasses = ()
    for _, records in inspected_splits:
        place_by_set = {**records.metadata.label_sets, **place_by_set}
        file_classes = file_classes or records.metadata.classes
    if not place_by_set:
        return reader
    return reader.partly_labeled(place_by_set, file_classes, pixels_by_labels(inspected_splits))


def describe_labels(inspected_splits: InspectedSplits, reader: TargetReader) -> list[str]:
    """Lines on how many images are labeled for each class; none if all are labeled for all classes."""
    if not any(records.metadata.label_sets for _, records in inspected_splits):
        return []
    images = 0
    counts = [0] * len(reader.class_names)
    for inspection, records in inspected_splits:
        for i in np.flatnonzero(inspection.members >= 0).tolist():
            images += 1
            for index in labeled_indices(reader, records.label_set(i)):
                counts[index] += 1
    lines = [f"images that are labeled for each class, of {images}"]
    for name, count in zip(reader.class_names, counts, strict=True):
        lines.append(f"  {count:>8}  {100 * count / max(images, 1):7.3f} %  {name}")
    return lines


def labeled_indices(reader: TargetReader, labeled_for: LabelSet | None) -> Collection[int]:
    """The classes, by index, that an image is labeled for."""
    classes = reader.labeled_classes(labeled_for)
    return range(len(reader.class_names)) if classes is None else classes


def label_set_warnings(inspected_splits: InspectedSplits, reader: TargetReader) -> tuple[str, ...]:
    """Warnings about the label files of the splits, the training images first."""
    if not any(records.metadata.label_sets for _, records in inspected_splits):
        return ()
    lines = [*_unlisted_images(inspected_splits), *_unlabeled_images(inspected_splits, reader)]
    if len(inspected_splits) == 2:
        lines += _never_labeled(inspected_splits, reader)
    return tuple(lines)


def _unlisted_images(inspected_splits: InspectedSplits) -> Iterator[str]:
    """Images that a `classes.csv` does not list."""
    names: list[str] = []
    for _, records in inspected_splits:
        names += records.metadata.unlisted
    if names:
        images = counted(len(names), "image has", "images have")
        yield f"{images} no row in classes.csv, which means labeled for all classes: {listing(names)}"


def _unlabeled_images(inspected_splits: InspectedSplits, reader: TargetReader) -> Iterator[str]:
    """Images that are labeled for no class."""
    names: list[str] = []
    for inspection, records in inspected_splits:
        for i in np.flatnonzero(inspection.members >= 0).tolist():
            if not labeled_indices(reader, records.label_set(i)):
                names.append(records.name(i))
    if names:
        name_list = listing(names)
        images = counted(len(names), "image is", "images are")
        yield f"{images} labeled for no class, useless for training and scores: {name_list}"


def _never_labeled(inspected_splits: InspectedSplits, reader: TargetReader) -> Iterator[str]:
    """Classes that no training image, or no validation image, is labeled for."""
    consequences = ("which will not be learned", "which cannot be scored")
    for (inspection, _), kind, consequence in zip(
        inspected_splits, ("training", "validation"), consequences, strict=True
    ):
        labeled: set[int] = set()
        for content, _, _ in inspection.used_contents():
            labeled.update(labeled_indices(reader, content.labeled_for))
        missing = []
        for index, name in enumerate(reader.class_names):
            if index not in labeled and index != reader.background:
                missing.append(name)
        if missing:
            yield f"no {kind} image is labeled for {listing(missing)}, {consequence}"
