"""The shared parts of the losses of classes: a pixel term, a region term, and a weight for each class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from runtime.errors import SettingsError
from tasks.confusion import ClassCounts
from tasks.losses import LOSSES, Loss, RegionSums
from tasks.tables import Column
from tasks.task import Scores, Task

MEANS = (Column("mean_iou", "mean IoU"), Column("mean_dice", "mean Dice"))
AnyTask = TypeVar("AnyTask", bound="PixelsAndRegions")


class ClassMeans(Scores):
    """Scores of classes; models are compared by the mean IoU.

    Args:
        names: the classes.
        sums: numbers of pixels, int64; the subclass defines their shape.
        by_image: (images, 1), the mean IoU of each image.
    """

    compared = MEANS[0]
    headline: Sequence[Column] = MEANS
    beside_image = ("mean_iou", "mean_dice")
    recorded_by_name = ("iou", "dice")

    def __init__(self, names: Sequence[str], sums: Tensor, by_image: Tensor) -> None:
        super().__init__(sums, by_image)
        self.names = tuple(names)

    @property
    @abstractmethod
    def counts(self) -> ClassCounts:
        """The pixels that each class is scored by."""

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


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class PixelsAndRegions(Task):
    """A loss of two terms, one over pixels and one over the regions that they form.

    Args:
        names: the classes' names, in the order of the logits.
        loss: one of LOSSES.
        weights: (classes,) factors on the pixel term; its count is then the sum of the pixels' weights.
    """

    names: tuple[str, ...]
    loss: str = "ce+logdice"
    weights: Tensor | None = None

    terms = 2

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(f"loss {self.loss!r} is none of {', '.join(LOSSES)}")
        weights = torch.ones(len(self.names)) if self.weights is None else self.weights.float()
        object.__setattr__(self, "weights", weights)

    @property
    def outputs(self) -> int:
        return len(self.names)

    @property
    def class_weights(self) -> Tensor:
        """(num_classes,) float32; ones by default."""
        assert self.weights is not None
        return self.weights

    @property
    def loss_terms(self) -> Loss:
        """The two terms of the loss."""
        return LOSSES[self.loss]

    def finish(self, partial: tuple[Tensor, ...]) -> Tensor:
        """(2,): the sums of the pixel term and of the region term.

        Args:
            partial: the sum of the pixel term; if the loss has a region term, also the three of `RegionSums`.
        """
        pixels, *regions = partial
        region_term = self.loss_terms.regions
        if region_term is None:
            return torch.stack([pixels, pixels.new_zeros(())])
        sums = RegionSums(*regions)
        return torch.stack([pixels, (region_term(sums) * (sums.size > 0)).sum()])

    def to(self: AnyTask, device: torch.device) -> AnyTask:
        return replace(self, weights=self.class_weights.to(device))


def class_weight_tensor(weights: Sequence[float | str] | None, class_pixels: Sequence[int]) -> Tensor | None:
    """(num_classes,) loss weights: the given ones, or none, or for ["auto"] inverse to the root of each class's pixels.

    The root weakens the effect of the frequency (docs/results.md). A class with the average number of pixels has weight
    1, and so has a class without pixels.

    Raises SettingsError if there is not one weight for each class.
    """
    if weights is None or list(weights) == ["none"]:
        return None
    if list(weights) == ["auto"]:
        pixels = torch.tensor(class_pixels, dtype=torch.float32)
        return torch.where(pixels > 0, (pixels.sum() / (len(pixels) * pixels)).sqrt(), 1)
    if "auto" in weights or "none" in weights or len(weights) != len(class_pixels):
        raise SettingsError(
            f"--class-weights has {len(weights)} values for {len(class_pixels)} classes;"
            " give `auto`, `none` or one for each class"
        )
    return torch.tensor(weights)
