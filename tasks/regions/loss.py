"""Regions: unions of a mask's labels, which may overlap; predictions are written as a label map."""

from dataclasses import dataclass
from typing import Any

import torch

from runtime.errors import ModelError
from tasks.overlapping.loss import Overlapping, mirroring_of_model
from tasks.regions.scores import RegionScores
from tasks.regions.target import Region, region_bits
from unet.config import UNetConfig


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
