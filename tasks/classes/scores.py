"""Scores of classes: of one class for each pixel from a confusion matrix, and the means of all kinds of classes."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from tasks.classes.target import ClassTarget, PartlyLabeledTarget
from tasks.confusion import ClassCounts, class_scores, class_table, confusion_matrix, image_iou
from tasks.scoring.boundary import boundary_report
from tasks.tables import Column, Table
from tasks.task import Scores

MEANS = (Column("mean_iou", "mean IoU"), Column("mean_dice", "mean Dice"))
COUNTS = 4  # columns of `PartlyLabeledScores.sums` behind the confusion matrix


class ClassMeans(Scores):
    """Scores of classes; models are compared by the mean IoU.

    Args:
        names: the classes.
        sums: numbers of pixels, int64; the subclass defines their shape.
        by_image: (images, 1), the mean IoU of each image.

    Attributes:
        shows_errors: whether tables have columns of the missed and the wrongly found pixels.
    """

    compared = MEANS[0]
    headline: Sequence[Column] = MEANS
    beside_image = ("mean_iou", "mean_dice")
    recorded_by_name = ("iou", "dice")
    shows_errors: ClassVar[bool] = False

    def __init__(self, names: Sequence[str], sums: Tensor, by_image: Tensor) -> None:
        super().__init__(sums, by_image)
        self.names = tuple(names)

    @property
    @abstractmethod
    def counts(self) -> ClassCounts:
        """The pixels that each class is scored by."""

    @property
    def values(self) -> dict[str, Any]:
        """`confusion.class_scores`: means by name, and a list over the classes by metric."""
        return class_scores(self.counts)

    def by_name(self) -> dict[str, dict[str, Any]]:
        values = self.values
        by_name = {}
        for index, name in enumerate(self.names):
            by_name[name] = {key: values[key][index] for key in self.recorded_by_name}
        return by_name

    @property
    def unfound(self) -> list[str]:
        is_unfound = (self.counts.truth > 0) & (self.counts.hits == 0)
        return [self.names[index] for index in is_unfound.nonzero()[:, 0].tolist()]

    def score_tables(self) -> list[Table]:
        values = self.values
        if self.boundaries:
            values |= boundary_report(self.boundaries)
        return [class_table("Classes", "class", self.names, values, self.counts, errors=self.shows_errors)]


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

    def add(self, prediction: Tensor, target: ClassTarget, index: int) -> None:
        assert isinstance(target, PartlyLabeledTarget)
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

    def score_tables(self) -> list[Table]:
        (table,) = super().score_tables()
        note = "Each class is scored on the images that are labeled for it."
        pixels = self.sums[:, -1].tolist()
        unscored = []
        for name, count in zip(self.names, pixels, strict=True):
            if not count:
                unscored.append(name)
        if unscored:
            note += f" No image is labeled for {', '.join(unscored)}: these classes cannot be scored."
        return [table._replace(note=f"{note} {table.note}".rstrip())]
