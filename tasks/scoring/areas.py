"""Areas of a class found and missed: the connected components of the true mask, by class and size.

Dice adds up pixels, so that small areas hardly count in it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from runtime.scratch import release, row_spans
from tasks.components import components
from tasks.object_sizes import SIZES, found_by_size
from unet.config import IGNORE_INDEX

BINS = len(SIZES) + 1
AREA = 1  # a pixel of an area
HIT = 2  # a pixel of an area that the other mask has, too


def count_areas(predicted: np.ndarray, true: np.ndarray, classes: int) -> np.ndarray:
    """The counts (classes, 2 * BINS + 2) int64 of areas of class indices (*spatial); the first class is background.

    The columns are the areas of the true mask by their size, those of them that are found, the areas of the
    prediction, and those of them in which the true mask has no pixel of their class; they add up over images. An area
    is found if the prediction has a pixel of its class in it. Ignored pixels belong to no class.
    """
    from scipy.ndimage import find_objects

    counts = np.zeros((classes, 2 * BINS + 2), np.int64)
    boxes = zip(find_objects(true, classes - 1), find_objects(predicted, classes - 1), strict=True)
    for index, (true_box, predicted_box) in enumerate(boxes, 1):
        if true_box:
            for area in components(_strips(true, predicted, true, index, true_box)):
                size = np.searchsorted(SIZES, np.count_nonzero(area.values), side="right")
                counts[index, size] += 1
                counts[index, BINS + size] += int(area.values.max() > AREA)
        if predicted_box:
            for area in components(_strips(predicted, true, true, index, predicted_box)):
                counts[index, -2] += 1
                counts[index, -1] += int(area.values.max() == AREA)
    return counts


def _strips(
    mask: np.ndarray, other: np.ndarray, true: np.ndarray, index: int, box: tuple[slice, ...]
) -> Iterator[np.ndarray]:
    """Strips of a `box` of a mask that are AREA in a class, HIT where the other mask has the class too, else 0."""
    first, *others = box
    for rows in row_spans(first.stop - first.start):
        window = (slice(first.start + rows.start, first.start + rows.stop), *others)
        is_area = (mask[window] == index) & (true[window] != IGNORE_INDEX)
        is_hit = is_area & (other[window] == index)
        yield is_area * np.uint8(AREA) + is_hit * np.uint8(HIT - AREA)
        release(mask, other)


def area_report(counts: Sequence[np.ndarray], names: Sequence[str]) -> dict[str, Any]:
    """The entry of metrics.json for the areas of all images, from the `count_areas` of each."""
    total = np.sum(counts, axis=0)
    by_class = {}
    for name, row in zip(names[1:], total[1:].tolist(), strict=True):
        by_class[name] = {
            "areas": sum(row[:BINS]),
            "found": sum(row[BINS : 2 * BINS]),
            "areas_by_size": row[:BINS],
            "found_by_size": row[BINS : 2 * BINS],
            "predicted": row[-2],
            "false": row[-1],
        }
    return {"sizes": SIZES, "by_class": by_class}


def area_table(report: dict[str, Any]) -> str:
    """The result of `area_report` as plain text, a line for each class that occurs; empty if none does."""
    lines = []
    for name, areas in report["by_class"].items():
        if not areas["areas"] and not areas["predicted"]:
            continue
        sizes = found_by_size(areas["found_by_size"], areas["areas_by_size"])
        lines.append(
            f"{name}: {areas['found']:,} of {areas['areas']:,} connected areas found"
            f" ({sizes}); {areas['false']:,} of {areas['predicted']:,} predicted areas lie beside all true ones"
        )
    return "\n".join(lines)
