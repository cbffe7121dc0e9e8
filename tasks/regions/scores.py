"""Scores of regions, and of the labels that they are written as."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.confusion import class_table
from tasks.overlapping.scores import OverlapScores, class_tables, foreground_counts, table_scores
from tasks.overlapping.target import OverlapTarget
from tasks.pixels_and_regions import MEANS
from tasks.regions.target import Region
from tasks.tables import Column, Table


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

    def score_tables(self, boundary: dict[str, Any] | None = None) -> list[Table]:
        (regions,) = super().score_tables(boundary)
        counts = foreground_counts(self.sums[len(self.names) :])
        labels = class_table("Written labels", "label", self.labels, self.label_values, counts, errors=True)
        return [regions._replace(title="Regions", first="region"), labels]
