"""The class of each pixel: cross-entropy and Dice from logits, also where images are labeled for some classes only."""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from data_utils.class_map import ClassMap
from runtime.device import full_precision, widest_float
from runtime.errors import ModelError
from tasks.calibration import count_confidences
from tasks.classes.scores import COUNTS, ClassScores, PartlyLabeledScores
from tasks.classes.target import ClassTarget, PartlyLabeledTarget
from tasks.losses import PixelsAndRegions, RegionSums
from unet.config import IGNORE_INDEX, UNetConfig

BYTES_AT_ONCE = 2**30  # the memory that `counts` uses for the rows that it counts at a time


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class Classes(PixelsAndRegions):
    """Cross-entropy (or focal) per valid pixel, plus soft Dice per (image, class present in the truth).

    Dice of image b and class c is 2 sum(p t) / (sum(p) + sum(t)) over valid pixels (Milletari et al. 2016, without
    squares); classes absent from an image's truth are left out, so an empty class is never counted as perfect. Its term
    is 1 - Dice, or -log Dice (Wong et al. 2018, arXiv:1809.00076). As long as a rare class is hardly predicted, the
    gradient of 1 - Dice is as small as the probability of the class, while the gradient of -log Dice is not.

    The names are in the order of the classes' indices, and the weights are factors on each pixel's cross-entropy.

    Args:
        background: see `tasks.task.Scores`.
    """

    background: int | None = 0

    name = "classes"
    scores = ClassScores
    target = ClassTarget
    has_exclusive_classes = True
    reading = "the class of a pixel is the index of its largest logit"

    def counts(self, targets: ClassTarget) -> Tensor:
        """(2,): the summed weight of the valid pixels, and the number of (image, class) pairs."""
        dtype = widest_float(targets.mask.device)
        height = targets.mask.shape[1]
        row_bytes = 8 * len(self.names) * targets.mask.numel() // height
        sizes = torch.zeros((), dtype=dtype, device=targets.mask.device)  # the first rows make it (B, num_classes)
        for rows in targets.mask.split(max(1, BYTES_AT_ONCE // row_bytes), dim=1):
            truth, valid = _truth(rows, dtype)
            sizes = sizes + self._class_sums(valid, truth)
        return torch.stack([(sizes * self.class_weights).sum(), (sizes > 0).sum().to(dtype)])

    def partial(self, logits: Tensor, targets: ClassTarget) -> tuple[Tensor, ...]:
        """The sum of the pixel term; if the loss has a region term, also the three of `RegionSums`."""
        logits = full_precision(logits)
        truth, valid = _truth(targets.mask, logits.dtype)
        log_probs = logits.log_softmax(dim=1)
        # not `cross_entropy`: its sum over (B, C, *spatial) is not deterministic on CUDA, and Dice needs log_probs too
        log_truth = log_probs.gather(1, truth.unsqueeze(1)).squeeze(1)  # (B, *spatial), of the true class
        pixels = logits.new_zeros(())
        pixel_term, region_term = self.loss_terms
        if pixel_term is not None:
            weights = self.class_weights.to(logits.dtype).index_select(0, truth.flatten()).view_as(valid) * valid
            pixels = -(pixel_term(weights, log_truth) * log_truth).sum()
        if region_term is None:
            return (pixels,)
        regions = RegionSums(
            overlap=self._class_sums(log_truth.exp() * valid, truth),
            predicted=(log_probs.exp() * valid.unsqueeze(1)).sum(dim=tuple(range(2, logits.ndim))),
            size=self._class_sums(valid, truth),
        )
        return (pixels, *regions)

    def count_certainty(self, certainty: Tensor, prediction: Tensor, targets: ClassTarget) -> Tensor:
        return count_confidences(certainty, prediction == targets.mask, targets.mask != IGNORE_INDEX)

    def new_scores(self, images: int, device: torch.device | str = "cpu") -> ClassScores:
        sums = torch.zeros(len(self.names), len(self.names), dtype=torch.int64, device=device)
        scores = ClassScores(self.names, sums, torch.zeros(images, 1, device=device))
        scores.background = self.background
        return scores

    def decode(self, logits: Tensor) -> Tensor:
        return most_likely(logits).to(torch.uint8)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The softmax of the logits."""
        return logits.softmax(dim=1)

    def entropy(self, logits: Tensor) -> Tensor:
        """The entropy of the classes' probabilities over its largest value, ln(classes)."""
        return class_entropy(logits)

    def certainty(self, logits: Tensor) -> Tensor:
        """The probability of the most likely class, (B, *spatial)."""
        full = logits.float()
        return (full.amax(dim=1) - full.logsumexp(dim=1)).exp()

    def logits_from_probabilities(self, probabilities: Tensor) -> Tensor:
        # the logarithm of 0 could not be interpolated
        return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()

    def to_config(self) -> None:
        return None

    @classmethod
    def from_config(cls, config: UNetConfig) -> "Classes":
        if config.num_classes > IGNORE_INDEX:
            raise ModelError(f"the model has {config.num_classes} classes, of which masks hold up to {IGNORE_INDEX}")
        class_map = ClassMap.from_preprocess(config.preprocess, config.num_classes)
        background = class_map.background
        if background is None:  # the value 0 may have another name
            background = class_map.index_of(0)
        return cls(class_map.names, background=background)

    def _class_sums(self, values: Tensor, truth: Tensor) -> Tensor:
        """(B, num_classes): the sum of values (B, *spatial) over the pixels of each class of each image."""
        cells = values.new_zeros(len(truth), len(self.names), *truth.shape[2:])
        # There is a cell for each column of an image, and for each line of a volume along its first axis: neighbors on
        # a GPU never wait for each other's cell, and no sum is so long that float32 rounds away the last values.
        return cells.scatter_add(1, truth, values).flatten(2).sum(dim=2)


class DividedPixels(NamedTuple):
    """The pixels of partly labeled images.

    Args:
        labeled: the classes that each image is labeled for; all other pixels are ignored.
        others: (B, *spatial) bool, the pixels of other classes.
        flags: (B, num_classes) bool, the classes that each image is labeled for.
    """

    labeled: ClassTarget
    others: Tensor
    flags: Tensor


@dataclass(frozen=True, eq=False)  # tensors have no single truth value to compare by
class PartlyLabeledClasses(Classes):
    """The loss of `Classes`, if an image may be labeled for only some of the classes.

    A pixel outside of the labeled classes can be of any other class, the background included: its term is computed from
    the summed probability of these other classes, with weight 1 (marginal loss: Shi et al. 2021, arXiv:2007.03868).
    Dice counts the classes that an image is labeled for.

    Args:
        flags: (sets, num_classes) bool, whether images of each set are labeled for each class; the first set has all.
    """

    flags: Tensor = field(kw_only=True)

    target = PartlyLabeledTarget

    def counts(self, targets: ClassTarget) -> Tensor:
        divided = self._divide(targets)
        counts = super().counts(divided.labeled)
        counts[0] += divided.others.sum()
        return counts

    def partial(self, logits: Tensor, targets: ClassTarget) -> tuple[Tensor, ...]:
        logits = full_precision(logits)
        labeled, others, flags = self._divide(targets)
        pixels, *regions = super().partial(logits, labeled)
        log_probs = logits.log_softmax(dim=1)
        pixel_term = self.loss_terms.pixels
        if pixel_term is not None:
            # if an image is labeled for all classes, no pixel counts; the lowest number keeps the gradient finite
            per_pixel = (1,) * (logits.ndim - 2)
            is_other = ~flags.view(*logits.shape[:2], *per_pixel)
            lowest = torch.finfo(logits.dtype).min
            log_others = log_probs.masked_fill(~is_other, lowest).logsumexp(dim=1)
            weights = others.to(logits.dtype)
            pixels = pixels - (pixel_term(weights, log_others) * log_others).sum()
        if not regions:
            return (pixels,)
        labeled_sums = RegionSums(*regions)
        spatial = tuple(range(2, logits.ndim))
        predicted_elsewhere = (log_probs.exp() * others.unsqueeze(1)).sum(dim=spatial)
        return (pixels, *labeled_sums._replace(predicted=labeled_sums.predicted + predicted_elsewhere))

    def count_certainty(self, certainty: Tensor, prediction: Tensor, targets: ClassTarget) -> Tensor:
        """The counts of the pixels whose class the image is labeled for."""
        return super().count_certainty(certainty, prediction, self._divide(targets).labeled)

    def new_scores(self, images: int, device: torch.device | str = "cpu") -> PartlyLabeledScores:
        classes = len(self.names)
        sums = torch.zeros(classes, classes + COUNTS, dtype=torch.int64, device=device)
        return PartlyLabeledScores(self.names, self.flags.to(device), sums, torch.zeros(images, 1, device=device))

    def to(self, device: torch.device) -> "PartlyLabeledClasses":
        return replace(self, weights=self.class_weights.to(device), flags=self.flags.to(device))

    def _divide(self, targets: ClassTarget) -> DividedPixels:
        """Divide the pixels into labeled classes and others."""
        assert isinstance(targets, PartlyLabeledTarget)
        flags = self.flags[targets.label_set.long()]
        mask = targets.mask.long()
        is_valid = mask != IGNORE_INDEX
        truth = mask.where(is_valid, 0)
        is_labeled = flags.gather(1, truth.flatten(1)).view_as(mask)
        labeled = ClassTarget(mask.where(is_labeled, IGNORE_INDEX))
        return DividedPixels(labeled, is_valid & ~is_labeled, flags)


def class_entropy(logits: Tensor) -> Tensor:
    """The entropy of the softmax of logits (B, classes, *spatial) over its largest value, (B, *spatial)."""
    entropy = torch.special.entr(logits.softmax(dim=1)).sum(dim=1)
    return (entropy / math.log(max(2, logits.shape[1]))).clamp_max(1)  # rounding may exceed it


def most_likely(logits: Tensor) -> Tensor:
    """The class with the largest logit, the first of equals: `logits.argmax(1)`, which takes four times as long."""
    return logits.max(dim=1).indices


def _truth(masks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The masks (B, *spatial) as int64, with class 0 for ignored pixels.

    The second tensor is 1 for valid pixels and 0 for ignored ones, in `dtype`.
    """
    valid = masks != IGNORE_INDEX
    return masks.long().where(valid, 0), valid.to(dtype)
