"""Classes that may overlap, and regions: a sigmoid for each; cross-entropy and Dice from logits."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data_utils.config import OVERLAPPING
from runtime.device import full_precision, widest_float
from tasks.calibration import count_confidences
from tasks.losses import PixelsAndRegions, RegionSums
from tasks.overlapping.scores import OverlapScores, RegionScores, count_bits, planes
from tasks.overlapping.target import OverlapTarget, Region, region_bits
from unet.config import UNetConfig


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Overlapping(PixelsAndRegions):
    """Binary cross-entropy (or focal) per known pixel, plus soft Dice per (image, class in its truth).

    Each class has a sigmoid of its own. The cross-entropy of a pixel is the sum over its classes: with a mean, Dice
    would outweigh the cross-entropy, the more so the more classes there are. Dice of image b and class c is defined as
    in `Classes`, over the pixels in which c is known. The names are in the order of the classes' bits, and the weights
    are factors on the cross-entropy of each class.

    Args:
        partners: for each class, the index of the class that it becomes in the mirror image; empty if no class changes.
        mirrors: whether images may be mirrored.
    """

    partners: tuple[int, ...] = ()
    mirrors: bool = True

    name = OVERLAPPING
    scores = OverlapScores
    target = OverlapTarget
    reading = "a pixel has each class whose logit is above 0"

    def counts(self, targets: OverlapTarget) -> Tensor:
        """(2,): the weight of the known pixels, averaged over the classes; the number of (image, class) pairs."""
        dtype = widest_float(targets.truth.device)
        known_pixels = count_bits(targets.known, self.outputs).to(dtype)
        pairs = torch.zeros((), dtype=dtype, device=known_pixels.device)
        for truth in targets.truth:
            pairs = pairs + (count_bits(truth, self.outputs) > 0).sum().to(dtype)
        return torch.stack([(known_pixels * self.class_weights).mean(), pairs])

    def partial(self, logits: Tensor, targets: OverlapTarget) -> tuple[Tensor, ...]:
        """The sum of the pixel term; if the loss has a region term, also the three of `RegionSums`."""
        logits = full_precision(logits)
        truth = planes(targets.truth, self.outputs).to(logits.dtype)
        is_known = planes(targets.known, self.outputs).to(logits.dtype)
        log_probs = F.logsigmoid(logits)
        spatial = tuple(range(2, logits.ndim))
        pixels = logits.new_zeros(())
        pixel_term, region_term = self.loss_terms
        if pixel_term is not None:
            entropy = (1 - truth) * logits - log_probs  # cross-entropy of the sigmoid against 0 or 1
            by_class = (pixel_term(entropy, -entropy) * is_known).sum(dim=(0, *spatial))
            pixels = (by_class * self.class_weights.to(logits.dtype)).sum()
        if region_term is None:
            return (pixels,)
        probs = log_probs.exp() * is_known
        regions = RegionSums(
            overlap=(probs * truth).sum(dim=spatial), predicted=probs.sum(dim=spatial), size=truth.sum(dim=spatial)
        )
        return (pixels, *regions)

    def count_certainty(self, certainty: Tensor, prediction: Tensor, targets: OverlapTarget) -> Tensor:
        """The counts of each pixel and class, from the classes' probabilities, which decide the prediction too.

        The confidence is the probability of the likelier of yes and no.
        """
        truth = planes(targets.truth, self.outputs).bool()
        is_known = planes(targets.known, self.outputs).bool()
        is_right = (certainty > 0.5) == truth
        return count_confidences(torch.maximum(certainty, 1 - certainty), is_right, is_known)

    def new_scores(self, images: int, device: torch.device | str = "cpu") -> OverlapScores:
        sums = torch.zeros(self.outputs, 2, 2, dtype=torch.int64, device=device)
        return OverlapScores(self.names, sums, torch.zeros(images, 1, device=device))

    def decode(self, logits: Tensor) -> Tensor:
        """A bit for each class whose sigmoid is above one half, int32."""
        bits = torch.zeros((), dtype=torch.int32, device=logits.device)
        for bit, class_logits in enumerate(logits.unbind(1)):
            bits = bits | (class_logits > 0).int() << bit
        return bits

    def certainty(self, logits: Tensor) -> Tensor:
        """The probability of each class, in the shape of the logits."""
        return logits.float().sigmoid()

    def to_config(self) -> dict[str, Any]:
        values: dict[str, Any] = {"name": self.name}
        if self.partners not in ((), tuple(range(self.outputs))):
            values["partners"] = list(self.partners)
        if not self.mirrors:
            values["mirrors"] = False
        return values

    @classmethod
    def from_config(cls, config: UNetConfig) -> "Overlapping":
        names = config.preprocess.class_names or tuple(map(str, range(1, config.num_classes + 1)))
        partners, mirrors = mirroring_of_model(config)
        return cls(names, partners=partners, mirrors=mirrors)


def mirroring_of_model(config: UNetConfig) -> tuple[tuple[int, ...], bool]:
    """Each class's partner in the mirror, and whether images may be mirrored."""
    values = config.task or {}
    order = list(range(config.num_classes))
    partners = values.get("partners", order)
    mirrors = values.get("mirrors", True)
    if sorted(partners) != order or not isinstance(mirrors, bool):
        raise ValueError(f"its sides are {partners} and {mirrors}")
    return tuple(partners), mirrors


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Regions(Overlapping):
    """The loss of `Overlapping`; each region, a union of a mask's labels, is one of its classes.

    Args:
        regions: the regions, in the order of their bits.
    """

    regions: tuple[Region, ...] = ()

    name = "regions"
    reading = "a pixel has the label of the last region whose logit is above 0"

    def new_scores(self, images: int, device: torch.device | str = "cpu") -> RegionScores:
        sums = torch.zeros(2 * self.outputs, 2, 2, dtype=torch.int64, device=device)
        return RegionScores(self.regions, sums, torch.zeros(images, 1, device=device))

    def decode(self, logits: Tensor) -> Tensor:
        """The regions that the written label stands for: the label of the last region with a sigmoid above one half."""
        bits = torch.zeros((), dtype=torch.int32, device=logits.device)
        for region, region_logits in zip(self.regions, logits.unbind(1), strict=True):
            bits = torch.where(region_logits > 0, region_bits(self.regions, region.values[0]), bits)
        return bits

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
    """The regions that a model was trained on."""
    assert config.task is not None
    regions = []
    for name, values in config.task["regions"]:
        regions.append(Region(str(name), tuple(map(int, values))))
    if not all(region.values for region in regions):
        raise ValueError("a region has no values")
    return tuple(regions)
