"""Areas of a class found and missed: the connected components of the true mask, by class and size.

Dice adds up pixels, so that small areas hardly count in it.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from runtime.scratch import release, row_spans
from tasks.confusion import foreground
from unet.config import IGNORE_INDEX

SIZES = (64, 256, 1024, 4096)  # limits, in pixels, of the ranges of sizes in which objects and areas are counted
BINS = len(SIZES) + 1
AREA = 1  # a pixel of an area
HIT = 2  # a pixel of an area that the other mask has, too
# the columns of counts
TRUE_BY_SIZE = slice(BINS)
FOUND_BY_SIZE = slice(BINS, 2 * BINS)
PREDICTED = 2 * BINS
FALSE = PREDICTED + 1
COLUMNS = FALSE + 1


def size_labels() -> list[str]:
    """The text of each range of sizes."""
    labels = [f"below {SIZES[0]:,}"]
    for low, high in pairwise(SIZES):
        labels.append(f"{low:,} to {high - 1:,}")
    return [*labels, f"{SIZES[-1]:,} and more"]


def count_areas(predicted: np.ndarray, true: np.ndarray, classes: int, background: int | None = 0) -> np.ndarray:
    """The counts (classes, COLUMNS) int64 of areas of class indices (*spatial), but those of the background.

    The columns are the areas of the true mask by their size, those of them that are found, the areas of the
    prediction, and those of them in which the true mask has no pixel of their class; they add up over images. An area
    is found if the prediction has a pixel of its class in it. Ignored pixels belong to no class.
    """
    from scipy.ndimage import find_objects

    counts = np.zeros((classes, COLUMNS), np.int64)
    whole = tuple(slice(0, side) for side in true.shape)  # where the class 0 may lie, which `find_objects` leaves out
    true_boxes = [whole, *find_objects(true, classes - 1)]
    release(true)
    predicted_boxes = [whole, *find_objects(predicted, classes - 1)]
    release(predicted)
    for index in foreground(classes, background):
        true_box, predicted_box = true_boxes[index], predicted_boxes[index]
        if true_box:
            sizes, hits = _areas(_strips(true, predicted, true, index, true_box))
            bins = np.searchsorted(SIZES, sizes, side="right")
            counts[index, TRUE_BY_SIZE] = np.bincount(bins, minlength=BINS)
            counts[index, FOUND_BY_SIZE] = np.bincount(bins[hits > 0], minlength=BINS)
        if predicted_box:
            _, hits = _areas(_strips(predicted, true, true, index, predicted_box))
            counts[index, PREDICTED] = len(hits)
            counts[index, FALSE] = (hits == 0).sum()
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


def _areas(strips: Iterator[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of each area, and those of them that are HIT, in an image that comes in strips of `_strips`."""
    from scipy.ndimage import label
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    sizes: list[np.ndarray] = []  # of the pieces of areas in each strip
    hits: list[np.ndarray] = []
    links: list[np.ndarray] = []  # (2, n): pairs of pieces, by their numbers from 1, that touch across strips
    pieces = 0
    edge = None  # the numbers of the pieces in the last row above
    for strip in strips:
        labels, count = label(strip)
        sizes.append(np.bincount(labels.ravel(), minlength=count + 1)[1:])
        hits.append(np.bincount(labels[strip == HIT], minlength=count + 1)[1:])
        if edge is not None:
            touches = (edge > 0) & (labels[0] > 0)
            links.append(np.stack([edge[touches], labels[0][touches] + pieces]))
        edge = np.where(labels[-1] > 0, labels[-1] + pieces, 0)
        pieces += count
    if not links or not pieces:
        return np.concatenate(sizes), np.concatenate(hits)
    first, second = np.concatenate(links, axis=1) - 1
    graph = coo_array((np.ones(len(first), bool), (first, second)), shape=(pieces, pieces))
    _, areas = connected_components(graph, directed=False)
    return np.bincount(areas, np.concatenate(sizes)), np.bincount(areas, np.concatenate(hits))


def area_report(counts: np.ndarray, names: Sequence[str], background: int | None = 0) -> dict[str, Any]:
    """The entry of metrics.json for the areas of all images, from the sum of their `count_areas`."""
    by_class = {}
    for index in foreground(len(names), background):
        row = counts[index].tolist()
        by_class[names[index]] = {
            "areas": sum(row[TRUE_BY_SIZE]),
            "found": sum(row[FOUND_BY_SIZE]),
            "areas_by_size": row[TRUE_BY_SIZE],
            "found_by_size": row[FOUND_BY_SIZE],
            "predicted": row[PREDICTED],
            "false": row[FALSE],
        }
    return {"sizes": SIZES, "by_class": by_class}


def area_table(report: dict[str, Any]) -> str:
    """The result of `area_report` as plain text, a line for each class that occurs; empty if none does."""
    lines = []
    for name, areas in report["by_class"].items():
        if not areas["areas"] and not areas["predicted"]:
            continue
        texts = []
        for label, found, count in zip(size_labels(), areas["found_by_size"], areas["areas_by_size"], strict=True):
            if count:
                texts.append(f"{label}: {found:,} of {count:,}")
        lines.append(
            f"{name}: {areas['found']:,} of {areas['areas']:,} connected areas found"
            f" ({'; '.join(texts) or 'no objects'}); {areas['false']:,} of {areas['predicted']:,} predicted areas lie"
            " beside all true ones"
        )
    return "\n".join(lines)
