"""The shared parts of the losses of classes: a pixel term, a region term, and a weight for each class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tasks.confusion import ClassCounts
from tasks.tables import Column
from tasks.task import Scores, Task

MEANS = (Column("mean_iou", "mean IoU"), Column("mean_dice", "mean Dice"))
AnyTask = TypeVar("AnyTask", bound="PixelsAndRegions")
LOSSES = ("ce+logdice", "ce+dice", "ce", "dice", "focal+dice")
FOCAL_GAMMA = 2.0  # Lin et al. 2017, arXiv:1708.02002
SMOOTHING = 1e-3  # pixels; keeps -log Dice finite if nothing of a class is found


class ClassMeans(Scores):
    """Scores of classes; models are compared by the mean IoU.

    Args:
        names: the classes.
        sums: numbers of pixels, int64; the subclass defines their shape.
        by_image: (images, 1), the mean IoU of each image.
    """

    headline: Sequence[Column] = MEANS

    def __init__(self, names: Sequence[str], sums: Tensor, by_image: Tensor) -> None:
        self.names = tuple(names)
        self.sums = sums
        self.by_image = by_image

    @property
    @abstractmethod
    def values(self) -> dict[str, Any]:
        """Means over the classes by name, and a list over the classes by metric."""

    @property
    @abstractmethod
    def counts(self) -> ClassCounts:
        """The pixels that each class is scored by."""

    @property
    def means(self) -> dict[str, Any]:
        return self.values

    @property
    def unfound(self) -> list[str]:
        is_unfound = (self.counts.truth > 0) & (self.counts.hits == 0)
        return [name for name, unfound in zip(self.names, is_unfound.tolist(), strict=True) if unfound]

    @property
    def comparison(self) -> float:
        return self.values["mean_iou"] or 0.0

    @property
    def image_comparison(self) -> list[float]:
        return self.by_image[:, 0].tolist()

    def record(self) -> dict[str, float | None]:
        values = self.means
        record = {f"eval/{column.key}": values[column.key] for column in self.headline}
        for metric in ("iou", "dice"):
            for name, value in zip(self.names, values[metric], strict=True):
                record[f"eval/{metric}/{name}"] = value
        return record

    def by_class(self) -> dict[str, list[float | None]]:
        values = self.values
        return {"dice": values["dice"], "iou": values["iou"]}


class RegionSums(NamedTuple):
    """Sums over the known pixels of each image, (B, classes) each, from which Dice is computed.

    Args:
        overlap: the probabilities of the pixels that are of the class.
        predicted: the probabilities of all pixels.
        size: the number of pixels that are of the class.
    """

    overlap: Tensor
    predicted: Tensor
    size: Tensor


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class PixelsAndRegions(Task):
    """A loss of two terms, one over pixels and one over the regions that they form.

    Args:
        names: the classes' names, in the order of the logits.
        loss: one of LOSSES.
        weights: (classes,) factors on the pixel term; its count is then the sum of the pixels' weights.
    """

    names: tuple[str, ...]
    loss: str = LOSSES[0]
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
    def pixel_term(self) -> str:
        """The pixel term of the loss, `ce` or `focal`; `dice` if the loss has no pixel term."""
        return self.loss.partition("+")[0]

    @property
    def region_term(self) -> str:
        """The region term of the loss, `logdice` or `dice`; the pixel term if the loss has no region term."""
        return self.loss.rpartition("+")[2]

    @property
    def has_regions(self) -> bool:
        """Whether the loss has a region term."""
        return self.region_term.endswith("dice")

    def finish(self, partial: tuple[Tensor, ...]) -> Tensor:
        """(2,): the sums of the pixel term and of the region term.

        Args:
            partial: the sum of the pixel term; if the loss has a region term, also the three of `RegionSums`.
        """
        pixels, *regions = partial
        if not self.has_regions:
            return torch.stack([pixels, pixels.new_zeros(())])
        overlap, predicted, size = RegionSums(*regions)
        if self.region_term == "logdice":
            missed = (predicted + size + SMOOTHING).log() - (2 * overlap + SMOOTHING).log()
        else:
            missed = 1 - 2 * overlap / (predicted + size).clamp_min(torch.finfo(predicted.dtype).tiny)
        return torch.stack([pixels, (missed * (size > 0)).sum()])

    def to(self: AnyTask, device: torch.device) -> AnyTask:
        return replace(self, weights=self.class_weights.to(device))
