"""Scores of classes that may overlap, from a 2 x 2 table for each; and of regions and their labels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.classes.scores import MEANS, ClassMeans
from tasks.confusion import ClassCounts, class_scores, class_table, image_iou, in_parts
from tasks.overlapping.target import OverlapTarget, Region
from tasks.tables import Column, Table


def planes(bits: Tensor, classes: int) -> Tensor:
    """Bits (B, *spatial) as planes (B, classes, *spatial) of 0 and 1."""
    per_pixel = (1,) * (bits.ndim - 1)
    shifts = torch.arange(classes, dtype=torch.int32, device=bits.device).view(-1, *per_pixel)
    return (bits.int().unsqueeze(1) >> shifts) & 1


def count_bits(bits: Tensor, classes: int) -> Tensor:
    """(classes,) int64: the number of pixels in which each bit is set."""
    return torch.stack([((bits >> shift) & 1).sum() for shift in range(classes)])


def class_tables(prediction: Tensor, truth: Tensor, known: Tensor, classes: int) -> Tensor:
    """Count pixels of three tensors of bits: (classes, 2, 2) int64, rows truth, columns prediction, absent first.

    Tables add up over images, strips and processes. Pixels in which a class is unknown are not counted for it.
    """
    tables = torch.zeros(classes, 2, 2, dtype=torch.int64, device=truth.device)
    for predicted, true, known_part in in_parts(prediction, truth, known):
        for row, in_truth in enumerate((~true, true)):
            for column, in_prediction in enumerate((~predicted, predicted)):
                tables[:, row, column] += count_bits(in_truth & in_prediction & known_part, classes)
    return tables


def foreground_counts(tables: Tensor) -> ClassCounts:
    """The pixels of the foreground of each class, from tables (N, 2, 2)."""
    return ClassCounts(tables[:, 1, 1], tables[:, 1].sum(dim=1), tables[:, :, 1].sum(dim=1))


def table_scores(tables: Tensor) -> dict[str, Any]:
    """The `class_scores` of the foregrounds of tables (N, 2, 2), without the accuracy of pixels."""
    values = class_scores(foreground_counts(tables))
    del values["pixel_accuracy"]
    return values


class OverlapScores(ClassMeans):
    """Every score from one table of whole numbers for each class.

    Args:
        names: the classes.
        sums: (classes, 2, 2) int64, the tables of `class_tables`.
        by_image: (images, 1), the mean IoU of each image.
    """

    background = None
    shows_errors = True

    def add(self, prediction: Tensor, target: OverlapTarget, index: int) -> None:
        tables = self.tables(prediction, target)
        self.sums += tables
        self.by_image[index, 0] += image_iou(foreground_counts(tables[: len(self.names)]))  # a filler adds 0

    def tables(self, prediction: Tensor, target: OverlapTarget) -> Tensor:
        """The tables of an image, or of a part of an image."""
        return class_tables(prediction, target.truth, target.known, len(self.names))

    @property
    def values(self) -> dict[str, Any]:
        """Means over the classes by name, and a list over the classes by metric."""
        return table_scores(self.sums[: len(self.names)])

    def report(self) -> dict[str, Any]:
        tables = self.sums[: len(self.names)]
        return {"classes": self.names, **table_scores(tables), "tables": tables.tolist()}

    @property
    def counts(self) -> ClassCounts:
        return foreground_counts(self.sums[: len(self.names)])

    @property
    def remark(self) -> str:
        return f"nothing was found of {', '.join(self.unfound)}" if self.unfound else ""


def last_bits(bits: Tensor, classes: int) -> Tensor:
    """Only the highest bit of each pixel, since later regions lie over earlier ones."""
    below = bits
    shift = 1
    while shift < classes:
        below = below | (below >> shift)
        shift *= 2
    return below ^ (below >> 1)


class RegionScores(OverlapScores):
    """Scores of regions, and of the labels that are written for them.

    Args:
        sums: (2 x regions, 2, 2), the tables of the regions, then the tables of the labels.
    """

    headline = (
        *MEANS,
        Column("label_mean_iou", "mean IoU of the labels"),
        Column("label_mean_dice", "mean Dice of the labels"),
    )

    def __init__(self, regions: Sequence[Region], sums: Tensor, by_image: Tensor) -> None:
        super().__init__([region.name for region in regions], sums, by_image)
        self.labels = [region.label for region in regions]

    def tables(self, prediction: Tensor, target: OverlapTarget) -> Tensor:
        count = len(self.names)
        last_region = last_bits(prediction, count)
        truth = last_bits(target.truth, count)
        return torch.cat([super().tables(prediction, target), class_tables(last_region, truth, target.known, count)])

    @property
    def label_values(self) -> dict[str, Any]:
        """Means over the labels, and a list over the labels by metric."""
        return table_scores(self.sums[len(self.names) :])

    @property
    def values(self) -> dict[str, Any]:
        """As of overlapping classes, and the means over the labels."""
        of_labels = self.label_values
        return super().values | {f"label_{column.key}": of_labels[column.key] for column in MEANS}

    def report(self) -> dict[str, Any]:
        labels = {"labels": self.labels, **self.label_values, "tables": self.sums[len(self.names) :].tolist()}
        return {**super().report(), "of_labels": labels}

    def score_tables(self) -> list[Table]:
        (regions,) = super().score_tables()
        counts = foreground_counts(self.sums[len(self.names) :])
        labels = class_table("Written labels", "label", self.labels, self.label_values, counts, errors=True)
        return [regions._replace(title="Regions", first="region"), labels]
