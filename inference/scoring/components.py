"""Areas of a class found and missed: the connected components of the true mask, by class and size.

Dice adds up pixels, so that small areas hardly count in it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from inference.decoding.components import Component, ComponentStream
from tasks.matching import SIZES, found_by_size
from unet.config import IGNORE_INDEX

BINS = len(SIZES) + 1
AREA = 1  # a pixel of an area
HIT = 2  # a pixel of an area that the other mask has, too


class AreaCounter:
    """Counts the areas of class indices that come in strips; the first class is background.

    An area is found if the prediction has a pixel of its class in it. Ignored pixels belong to no class.

    Args:
        classes: the number of classes.

    Attributes:
        true_areas: (classes, BINS) int64, areas of the true mask by their size.
        found_areas: (classes, BINS) int64, areas of the true mask that are found.
        predicted_areas: (classes,) int64, areas of the prediction.
        false_areas: (classes,) int64, areas of the prediction in which the true mask has no pixel of their class.
    """

    def __init__(self, classes: int) -> None:
        self.true_areas = np.zeros((classes, BINS), np.int64)
        self.found_areas = np.zeros((classes, BINS), np.int64)
        self.predicted_areas = np.zeros(classes, np.int64)
        self.false_areas = np.zeros(classes, np.int64)
        # for each class that the last strip holds, the components of the true mask and of the prediction
        self._streams: dict[int, tuple[ComponentStream, ComponentStream]] = {}

    def add(self, predicted: np.ndarray, true: np.ndarray) -> None:
        """Count the next strip (n, ...) of class indices."""
        predicted = np.where(true == IGNORE_INDEX, IGNORE_INDEX, predicted)
        present = set(np.unique(predicted).tolist()) | set(np.unique(true).tolist())
        for index in sorted(present | self._streams.keys()):
            if 0 < index < len(self.true_areas):
                self._add_class(index, predicted == index, true == index)
            if index not in present:
                self._streams.pop(index, None)

    def _add_class(self, index: int, predicted: np.ndarray, true: np.ndarray) -> None:
        streams = self._streams.setdefault(index, (ComponentStream(), ComponentStream()))
        true_areas, predicted_areas = streams
        hits = HIT * (predicted & true).astype(np.uint8)
        for area in true_areas.add(true * np.uint8(AREA) + hits):
            self._count_true(index, area)
        for area in predicted_areas.add(predicted * np.uint8(AREA) + hits):
            self._count_predicted(index, area)

    def finish(self) -> None:
        """Count the areas that touch the last row."""
        for index, (true_areas, predicted_areas) in self._streams.items():
            for area in true_areas.finish():
                self._count_true(index, area)
            for area in predicted_areas.finish():
                self._count_predicted(index, area)
        self._streams = {}

    def _count_true(self, index: int, area: Component) -> None:
        size = np.searchsorted(SIZES, np.count_nonzero(area.values), side="right")
        self.true_areas[index, size] += 1
        self.found_areas[index, size] += int(area.values.max() > AREA)

    def _count_predicted(self, index: int, area: Component) -> None:
        self.predicted_areas[index] += 1
        self.false_areas[index] += int(area.values.max() == AREA)

    def counts(self) -> np.ndarray:
        """The counts (classes, 2 * BINS + 2) int64: true, found, predicted, false; they add up over images."""
        return np.column_stack([self.true_areas, self.found_areas, self.predicted_areas, self.false_areas])


def area_report(counts: Sequence[np.ndarray], names: Sequence[str]) -> dict[str, Any]:
    """The entry of metrics.json for the areas of all images, from the `counts` of each."""
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
