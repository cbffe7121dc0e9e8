"""Classes in the report: their table, the confusion matrix, and masks in their colors."""

from collections.abc import Sequence

import numpy as np

from data_utils.targets.classes import ClassReader
from data_utils.visualize import class_colors, mark_errors, outlined_overlay, panel, to_rgb
from tasks.classes import ClassScores
from tasks.confusion import ClassCounts
from train_utils.reporting.embedding import embed_png
from train_utils.reporting.matrix_picture import DARK_CELL_SHARE, LABELED_CLASSES, matrix_picture
from train_utils.reporting.rendering import markdown_text, render
from train_utils.reporting.section import Section

METRICS = ("iou", "dice", "precision", "recall")
FOLDED = 4  # from this many classes without pixels on, they have no rows of their own
CONFUSIONS = 8  # the number of most frequent confusions that are listed


class ClassSection(Section[ClassScores]):
    """The section of reports on `tasks.classes`."""

    task_name = "Semantic segmentation"
    tags = ("semantic-segmentation",)
    mask_values = "class indices"
    flags = ("loss", "class_weights")
    curves = {"Validation scores": {"mean IoU": "eval/mean_iou", "mean Dice": "eval/mean_dice"}}  # noqa: RUF012
    means = {"mean_iou": "Mean IoU", "mean_dice": "Mean Dice", "pixel_accuracy": "Pixel accuracy"}  # noqa: RUF012
    score_key = "eval/mean_iou"
    views_hint = "Errors: wrong pixels are red, ignored ones light grey, right ones dark."

    def __init__(self, reader: ClassReader) -> None:
        super().__init__(reader)
        self.names = reader.class_map.names
        self.colors = class_colors(reader.class_map.values)

    def description(self) -> str:
        names = ", ".join(map(markdown_text, self.names))
        return f"Semantic segmentation into {len(self.names)} classes: {names}."

    def unfound(self, scores: ClassScores) -> list[str]:
        hits, truth, _ = scores.counts
        is_unfound = (truth > 0) & (hits == 0)
        return [name for name, unfound in zip(self.names, is_unfound.tolist(), strict=True) if unfound]

    def panel(self, image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> np.ndarray:
        return panel(image, truth, pred, self.colors)

    def views(self, image: np.ndarray, truth: np.ndarray, pred: np.ndarray) -> dict[str, np.ndarray]:
        return {
            "image": to_rgb(image),
            "truth": outlined_overlay(image, truth, self.colors),
            "prediction": outlined_overlay(image, pred, self.colors),
            "errors": mark_errors(image, truth, pred, len(self.colors)),
        }

    def render_pictures(self, scores: ClassScores) -> dict[str, np.ndarray]:
        return {"eval/confusion_matrix": matrix_picture(scores.matrix.numpy(), self.names)}

    def html(self, scores: ClassScores) -> str:
        counts = scores.matrix.numpy()
        values = scores.values
        present_classes, absent = choose_shown(scores.counts)
        is_large = len(present_classes) > LABELED_CLASSES
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        classes = []
        for index in present_classes:
            name = self.names[index]
            cells = []
            if not is_large:
                for share, count in zip(shares[index, present_classes], counts[index, present_classes], strict=True):
                    cells.append({"share": share, "pixels": count})
            classes.append(
                {
                    "name": name,
                    "color": f"rgb{tuple(self.colors[index].tolist())}",
                    "scores": [values[metric][index] for metric in METRICS],
                    "pixels": int(scores.counts.truth[index]),
                    "cells": cells,
                }
            )
        picture = None
        if is_large:
            shown_names = [self.names[index] for index in present_classes]
            picture = embed_png(matrix_picture(counts[np.ix_(present_classes, present_classes)], shown_names))
        return render(
            "classes.html.jinja",
            mean_iou=values["mean_iou"],
            mean_dice=values["mean_dice"],
            classes=classes,
            absent=[self.names[index] for index in absent],
            matrix_picture=picture,
            confusions=confusions(counts, self.names),
            has_matrix=counts.any() or not scores.is_partly_labeled,
            is_partly_labeled=scores.is_partly_labeled,
            unscored=scores.unscored,
            strong=DARK_CELL_SHARE,
        )

    def markdown(self, scores: ClassScores) -> str:
        values = scores.values
        classes = []
        present_classes, absent = choose_shown(scores.counts)
        for index in present_classes:
            class_scores = [values[metric][index] for metric in METRICS]
            pixels = int(scores.counts.truth[index])
            classes.append({"name": self.names[index], "scores": class_scores, "pixels": pixels})
        means = {metric.label: metric.value for metric in self.metrics(scores)}
        absent_names = [self.names[index] for index in absent]
        return render(
            "classes.md.jinja",
            means=means,
            classes=classes,
            absent=absent_names,
            is_partly_labeled=scores.is_partly_labeled,
            unscored=scores.unscored,
        )


def choose_shown(counts: ClassCounts) -> tuple[list[int], list[int]]:
    """The classes to show, and the others: classes without pixels, unless these are fewer than FOLDED."""
    has_pixels = (counts.union > 0).numpy()
    present_classes = np.flatnonzero(has_pixels).tolist()
    absent = np.flatnonzero(~has_pixels).tolist()
    if len(absent) < FOLDED:
        return list(range(len(has_pixels))), []
    return present_classes, absent


def confusions(counts: np.ndarray, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Truth, prediction and pixels of the most frequent confusions, the most frequent one first."""
    wrong = counts * ~np.eye(len(names), dtype=bool)
    order = np.argsort(-wrong, axis=None, kind="stable")[:CONFUSIONS]
    rows, columns = np.unravel_index(order, wrong.shape)
    most_frequent = []
    for row, column in zip(rows, columns, strict=True):
        pixels = int(wrong[row, column])
        if pixels:
            most_frequent.append((names[row], names[column], pixels))
    return most_frequent
