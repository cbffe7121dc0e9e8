"""Scores of classes, from one confusion matrix."""

from typing import Any

import torch
from torch import Tensor

from tasks.classes.target import ClassTarget, PartlyLabeledTarget
from tasks.confusion import ClassCounts, class_scores, class_table, confusion_matrix, image_iou
from tasks.pixels_and_regions import MEANS, ClassMeans
from tasks.tables import Column, Table

COUNTS = 4  # columns of `PartlyLabeledScores.sums` behind the confusion matrix


class ClassScores(ClassMeans):
    """Every score from one integer confusion matrix over all images.

    Args:
        sums: (num_classes, num_classes) int64, pixels, rows truth, columns prediction.
        by_image: (images, 1), the mean IoU of each image.
    """

    headline = (*MEANS, Column("pixel_accuracy", "pixel accuracy"))
    beside_image = ("mean_iou", "pixel_accuracy")

    def add(self, prediction: Tensor, target: ClassTarget, index: int) -> None:
        matrix = confusion_matrix(prediction, target.mask, len(self.names))
        self.sums += matrix
        self.by_image[index, 0] += image_iou(ClassCounts.from_matrix(matrix))  # a filler adds 0

    @property
    def matrix(self) -> Tensor:
        """(num_classes, num_classes) int64, the confusion matrix."""
        return self.sums

    @property
    def counts(self) -> ClassCounts:
        return ClassCounts.from_matrix(self.matrix)

    @property
    def values(self) -> dict[str, Any]:
        """`confusion.class_scores`: means by name, and a list over the classes by metric."""
        return class_scores(self.counts)

    def report(self) -> dict[str, Any]:
        return {"classes": self.names, **self.values, "confusion_matrix": self.matrix.tolist()}

    @property
    def remark(self) -> str:
        _, truth, pixels = self.counts
        predicted = [name for name, count in zip(self.names, pixels.tolist(), strict=True) if count]
        has_others = (truth + pixels > 0).sum() > 1
        if has_others and len(predicted) == 1:
            return f"only {predicted[0]!r} was predicted"
        return ""

    def score_tables(self, boundary: dict[str, Any] | None = None) -> list[Table]:
        values = self.values | (boundary or {})
        return [class_table("Classes", "class", self.names, values, self.counts)]


class PartlyLabeledScores(ClassScores):
    """Scores of each class over the images that are labeled for it.

    Args:
        flags: (sets, num_classes) bool, as in `PartlyLabeledClasses`.
        sums: (num_classes, num_classes + COUNTS) int64: the confusion matrix of the images that are labeled for all
            classes; then four counts for each class, over the images that are labeled for it: true positives, pixels
            in the truth, pixels in the prediction, and all pixels.
        by_image: (images, 1), the mean IoU of each image over the classes that it is labeled for.
    """

    def __init__(self, names: tuple[str, ...], flags: Tensor, sums: Tensor, by_image: Tensor) -> None:
        super().__init__(names, sums, by_image)
        self.flags = flags

    def add(self, prediction: Tensor, target: PartlyLabeledTarget, index: int) -> None:  # type: ignore[override]  # its own target
        is_labeled = self.flags[target.label_set.long()][0]
        matrix = confusion_matrix(prediction, target.mask, len(self.names))
        counts = ClassCounts.from_matrix(matrix)
        all_pixels = matrix.sum().expand_as(counts.hits)
        columns = torch.stack([counts.hits, counts.truth, counts.predicted, all_pixels], dim=1)
        columns = columns * is_labeled[:, None]
        self.sums += torch.cat([matrix * is_labeled.all(), columns], dim=1)
        hits, truth, predicted, _ = columns.T
        self.by_image[index, 0] += image_iou(ClassCounts(hits, truth, predicted))  # a filler adds 0

    @property
    def matrix(self) -> Tensor:
        return self.sums[:, :-COUNTS]

    @property
    def counts(self) -> ClassCounts:
        hits, truth, predicted, _ = self.sums[:, -COUNTS:].T
        return ClassCounts(hits, truth, predicted)

    def score_tables(self, boundary: dict[str, Any] | None = None) -> list[Table]:
        (table,) = super().score_tables(boundary)
        note = "Each class is scored on the images that are labeled for it."
        pixels = self.sums[:, -1].tolist()
        unscored = []
        for name, count in zip(self.names, pixels, strict=True):
            if not count:
                unscored.append(name)
        if unscored:
            note += f" No image is labeled for {', '.join(unscored)}: these classes cannot be scored."
        return [table._replace(note=f"{note} {table.note}".rstrip())]
