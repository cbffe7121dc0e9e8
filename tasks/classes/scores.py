"""Scores of classes, from one confusion matrix."""

from typing import Any

from torch import Tensor

from tasks.classes.target import ClassTarget
from tasks.confusion import ClassCounts, class_scores, class_table, confusion_matrix, image_iou
from tasks.pixels_and_regions import MEANS, ClassMeans
from tasks.tables import Column, Table


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
