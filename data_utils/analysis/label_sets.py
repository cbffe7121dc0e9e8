"""Images that are labeled for some classes only: the meaning of their label files."""

from collections.abc import Collection

import numpy as np

from data_utils.analysis.inspection import InspectedSplits, pixels_by_labels
from data_utils.class_names import NamedClasses
from data_utils.sources.records import LabelSet
from data_utils.targets.reader import TargetReader


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
