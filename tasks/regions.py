"""Regions: unions of a mask's labels, which may overlap; predictions are written as a label map."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runtime.errors import ModelError
from tasks.confusion import class_table
from tasks.overlapping import (
    Overlapping,
    OverlapScores,
    OverlapTarget,
    class_tables,
    foreground_counts,
    mirroring_of_model,
    table_scores,
)
from tasks.pixels_and_regions import MEANS
from tasks.tables import Column, Table
from unet.config import UNetConfig


class Region(NamedTuple):
    """A union of labels.

    Args:
        values: the mask values of its labels; the first one is written to pixels whose last region this is.
    """

    name: str
    values: tuple[int, ...]

    @property
    def label(self) -> str:
        """The label that is written for the region, in words."""
        return f"label {self.values[0]}"


def region_bits(regions: Sequence[Region], value: int) -> int:
    """The bits of the regions that contain a mask value."""
    return sum(1 << bit for bit, region in enumerate(regions) if value in region.values)


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

    def report(self) -> dict[str, Any]:
        labels = {"labels": self.labels, **self.label_values, "tables": self.sums[len(self.names) :].tolist()}
        return {**super().report(), "of_labels": labels}

    @property
    def means(self) -> dict[str, Any]:
        of_labels = self.label_values
        return self.values | {f"label_{column.key}": of_labels[column.key] for column in MEANS}

    def score_tables(self, boundary: dict[str, Any] | None = None) -> list[Table]:
        (regions,) = super().score_tables(boundary)
        counts = foreground_counts(self.sums[len(self.names) :])
        labels = class_table("Written labels", "label", self.labels, self.label_values, counts, errors=True)
        return [regions._replace(title="Regions", first="region"), labels]


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Regions(Overlapping):
    """The loss of `Overlapping`; each region is one of its classes.

    Args:
        regions: the regions, in the order of their bits.
    """

    regions: tuple[Region, ...] = ()

    name = "regions"

    def new_scores(self, images: int, device: torch.device | str = "cpu") -> RegionScores:
        sums = torch.zeros(2 * self.outputs, 2, 2, dtype=torch.int64, device=device)
        return RegionScores(self.regions, sums, torch.zeros(images, 1, device=device))

    def scores_from_json(self, value: dict[str, Any]) -> RegionScores:
        by_image = torch.tensor(value["by_image"]).view(-1, 1)
        return RegionScores(self.regions, torch.tensor(value["sums"]), by_image)

    def label_bits(self) -> list[int]:
        """For each region, the bits of all regions that contain the label that is written for it."""
        return [region_bits(self.regions, region.values[0]) for region in self.regions]

    def to_config(self) -> dict[str, Any]:
        regions = [[region.name, list(region.values)] for region in self.regions]
        return {**super().to_config(), "regions": regions}

    @classmethod
    def from_config(cls, config: UNetConfig) -> "Regions":
        regions = regions_of_model(config)
        partners, mirrors = mirroring_of_model(config)
        names = tuple(region.name for region in regions)
        return cls(names, partners=partners, mirrors=mirrors, regions=regions)


def regions_of_model(config: UNetConfig) -> tuple[Region, ...]:
    """The regions that a model was trained on. Raises ModelError if config.json does not define them."""
    assert config.task is not None
    try:
        regions = []
        for name, values in config.task["regions"]:
            regions.append(Region(str(name), tuple(map(int, values))))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"config.json: the task's regions are damaged ({error!r})") from error
    if len(regions) != config.num_classes or not all(region.values for region in regions):
        raise ModelError(f"config.json: the task has {len(regions)} regions, the model {config.num_classes} outputs")
    return tuple(regions)
