"""The losses of classes. A new one is an entry of LOSSES."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

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
