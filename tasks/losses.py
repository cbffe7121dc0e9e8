"""The losses of classes: a pixel term, a region term, and a weight for each class. A new one is an entry of LOSSES."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from data_utils.target import Target
from runtime.errors import SettingsError
from tasks.task import Task

AnyTask = TypeVar("AnyTask", bound="PixelsAndRegions")
FOCAL_GAMMA = 2.0  # Lin et al. 2017, arXiv:1708.02002
SMOOTHING = 1e-3  # pixels; keeps -log Dice finite if nothing of a class is found


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


def cross_entropy(values: Tensor, log_truth: Tensor) -> Tensor:
    """A pixel's weight or cross-entropy, as it is."""
    return values


def focal(values: Tensor, log_truth: Tensor) -> Tensor:
    """A pixel's weight or cross-entropy, less where the truth is probable already; `log_truth` is its log-probability.

    Focal loss (Lin et al. 2017).
    """
    return values * (1 - log_truth.exp()) ** FOCAL_GAMMA


def dice(sums: RegionSums) -> Tensor:
    """(B, classes): 1 - soft Dice (Milletari et al. 2016, arXiv:1606.04797)."""
    total = sums.predicted + sums.size
    return 1 - 2 * sums.overlap / total.clamp_min(torch.finfo(total.dtype).tiny)


def log_dice(sums: RegionSums) -> Tensor:
    """(B, classes): -log of soft Dice, which is steep where nearly nothing is found (Wong et al. 2018)."""
    return (sums.predicted + sums.size + SMOOTHING).log() - (2 * sums.overlap + SMOOTHING).log()


class Loss(NamedTuple):
    """A term for pixels and one for the regions that they form; None for a loss without that term."""

    pixels: Callable[[Tensor, Tensor], Tensor] | None
    regions: Callable[[RegionSums], Tensor] | None


LOSSES = {
    "ce+logdice": Loss(cross_entropy, log_dice),
    "ce+dice": Loss(cross_entropy, dice),
    "ce": Loss(cross_entropy, None),
    "dice": Loss(None, dice),
    "focal+dice": Loss(focal, dice),
}


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
    def output_names(self) -> tuple[str, ...]:
        return self.names

    @property
    def class_weights(self) -> Tensor:
        """(num_classes,) float32; ones by default."""
        assert self.weights is not None
        return self.weights

    @property
    def loss_terms(self) -> Loss:
        """The two terms of the loss."""
        return LOSSES[self.loss]

    def finish(self, partial: tuple[Tensor, ...], targets: Target) -> Tensor:
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
