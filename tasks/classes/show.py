"""Classes in the report: the confusion matrix, and masks in their colors."""

from collections.abc import Sequence

import numpy as np

from tasks.charts import matrix_picture
from tasks.classes.reader import ClassReader
from tasks.classes.scores import ClassScores, PartlyLabeledScores
from tasks.drawing import class_colors, colorize, mark_errors, outlined_overlay
from tasks.section import Figure, Section
from tasks.tables import Column, Table

CONFUSIONS = 8  # the number of most frequent confusions that are listed
CONFUSION_COLUMNS = (Column("predicted", "predicted as", ""), Column("pixels", "pixels", ","))


class ClassSection(Section):
    """What `tasks.classes` shows."""

    mask_values = "class indices"
    views_hint = "Errors: wrong pixels are red, ignored ones light grey, right ones dark."
    background = 0

    def __init__(self, reader: ClassReader) -> None:
        super().__init__(reader)
        self.colors = class_colors(reader.class_map.values)

    def draw(self, image: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return outlined_overlay(image, labels, self.colors)

    def colorize(self, labels: np.ndarray) -> np.ndarray:
        return colorize(labels, self.colors)

    def errors(self, image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> dict[str, np.ndarray]:
        return {"errors": mark_errors(image, truth, pred, len(self.colors))}

    def shares(self, labels: np.ndarray) -> Sequence[float]:
        return (np.bincount(labels.ravel(), minlength=len(self.names)) / labels.size).tolist()

    def figures(self, scores: ClassScores) -> list[Figure]:
        counts = scores.matrix.numpy()
        if not counts.any():
            return [Figure("Confusion matrix", "No validation image is labeled for all classes.")]
        present = np.flatnonzero(counts.sum(axis=0) + counts.sum(axis=1)).tolist()
        names = [self.names[index] for index in present]
        text = "Percent of a row's pixels."
        if isinstance(scores, PartlyLabeledScores):
            text = "Percent of a row's pixels, in the images that are labeled for all classes."
        matrix = Figure("Confusion matrix", text, matrix_picture(counts[np.ix_(present, present)], names))
        rows = confusions(counts, self.names)
        if not rows:
            return [matrix]
        table = Table("Most frequent confusions", "truth", CONFUSION_COLUMNS, rows)
        return [matrix, Figure(table.title, "", table=table)]


def confusions(counts: np.ndarray, names: Sequence[str]) -> list[tuple[str, dict[str, object]]]:
    """Truth, prediction and pixels of the most frequent confusions, the most frequent one first."""
    wrong = counts * ~np.eye(len(names), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[:CONFUSIONS]
    rows = []
    for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True):
        pixels = int(wrong[row, column])
        if pixels:
            rows.append((names[row], {"predicted": names[column], "pixels": pixels}))
    return rows
