"""Cross-entropy and Dice from logits, as sums and counts that add up over micro-batches and processes.

A step's loss is sum / count for each of two terms, the pixels' and the regions', with both counts taken over the whole
step. The counts depend on the masks alone, so they are known before the first forward pass, and every micro-batch on
every process contributes its share: the loss does not depend on how the step is split.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor, nn

from unet.config import IGNORE_INDEX

LOSSES = ("ce+logdice", "ce+dice", "ce", "dice", "focal+dice")
FOCAL_GAMMA = 2.0  # Lin et al. 2017, arXiv:1708.02002
SMOOTHING = 1e-3  # pixels, so that -log Dice of what is not found at all is finite


class SegmentationLoss(nn.Module):
    """Cross-entropy (or focal) per valid pixel, plus soft Dice per (image, class present in the truth).

    Dice of image b and class c is 2 sum(p t) / (sum(p) + sum(t)) over valid pixels (Milletari et al. 2016, without
    squares); classes absent from an image's truth are left out, so an empty class is never counted as perfect. Its term
    is 1 - Dice, or -log Dice (Wong et al. 2018, arXiv:1809.00076): as long as a rare class is hardly predicted, the
    gradient of the one is as small as the class's probability, that of the other is not.

    Args:
        kind: one of `ce+logdice`, `ce+dice`, `ce`, `dice`, `focal+dice`.
        class_weights: (num_classes,) factors on each pixel's cross-entropy; the count is then the sum of the weights.
        strides: of each level of logits in training below the finest, the factor along each axis by which it is
            smaller than the one before: deep supervision (Lee et al. 2015, arXiv:1409.5185). Level i weighs 1 / 2^i,
            and all together 1.
    """

    def __init__(
        self,
        num_classes: int,
        kind: str = "ce+dice",
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORE_INDEX,
        strides: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.pixel_term, _, region_term = kind.partition("+")
        self.region_term = region_term or self.pixel_term
        self.ignore_index = ignore_index
        levels = len(strides) + 1
        self.level_weights = [2 ** (levels - 1 - level) / (2**levels - 1) for level in range(levels)]
        # of each coarser level, how many pixels along each axis it makes one
        self.level_factors = [*accumulate(strides, lambda above, stride: [*map(mul, above, stride)])]
        weights = torch.ones(num_classes) if class_weights is None else class_weights.float()
        self.register_buffer("class_weights", weights, persistent=False)

    def counts(self, masks: Tensor) -> Tensor:
        """(2,): weight of the valid pixels, number of (image, class) pairs, in masks (B, *spatial)."""
        dtype = torch.float32 if masks.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        truth, valid = self._truth(masks, dtype)
        sizes = self._class_sums(valid, truth)
        return torch.stack([(sizes * self.class_weights).sum(), (sizes > 0).sum().to(dtype)])

    def sums(self, logits: Tensor, masks: Tensor) -> Tensor:
        """(2,): summed pixel and region term, from logits (B, num_classes, *spatial) and masks (B, *spatial)."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        truth, valid = self._truth(masks, logits.dtype)
        log_probs = logits.log_softmax(dim=1)
        # not `cross_entropy`: its sum over (B, C, *spatial) is not deterministic on CUDA, and Dice needs the terms
        log_truth = log_probs.gather(1, truth.unsqueeze(1)).squeeze(1)  # (B, *spatial), of each pixel's true class
        pixels = regions = logits.new_zeros(())
        if self.pixel_term != "dice":
            weights = self.class_weights.to(logits.dtype).index_select(0, truth.flatten()).view_as(valid) * valid
            if self.pixel_term == "focal":
                weights = weights * (1 - log_truth.exp()) ** FOCAL_GAMMA
            pixels = -(weights * log_truth).sum()
        if self.region_term.endswith("dice"):
            # (B, num_classes) each: sum(p t), sum(p), sum(t)
            overlap = self._class_sums(log_truth.exp() * valid, truth)
            predicted = (log_probs.exp() * valid.unsqueeze(1)).sum(dim=tuple(range(2, logits.ndim)))
            size = self._class_sums(valid, truth)
            if self.region_term == "logdice":
                missed = (predicted + size + SMOOTHING).log() - (2 * overlap + SMOOTHING).log()
            else:
                missed = 1 - 2 * overlap / (predicted + size).clamp_min(torch.finfo(predicted.dtype).tiny)
            regions = (missed * (size > 0)).sum()
        return torch.stack([pixels, regions])

    def step_counts(self, masks: Tensor) -> Tensor:
        """(2 * levels,): the counts of each level, from masks (B, *spatial) at full size."""
        return torch.cat([self.counts(level_masks) for level_masks in self._levels(masks)])

    def forward(self, logits: Tensor | Sequence[Tensor], masks: Tensor, counts: Tensor) -> Tensor:
        """This micro-batch's share (a scalar) of the loss of a step; the shares add up.

        Args:
            logits: (B, num_classes, *spatial); with several levels one of each, finest first.
            masks: (B, *spatial).
            counts: `step_counts` of the whole step.
        """
        every = [logits] if isinstance(logits, Tensor) else logits
        counts = torch.where(counts > 0, counts, 1).view(-1, 2)
        shares = []
        for level, level_masks, count in zip(every, self._levels(masks), counts, strict=True):
            level = level[(..., *map(slice, level_masks.shape[1:]))]  # an encoder pads to its stride
            sums = self.sums(level, level_masks)
            shares.append((sums / count.to(sums.dtype)).sum())
        return sum(weight * share for weight, share in zip(self.level_weights, shares, strict=True))

    def _levels(self, masks: Tensor) -> list[Tensor]:
        """masks (B, *spatial) at the size of each level: the middle one of the pixels that pooling joins."""
        levels = [masks]
        for factors in self.level_factors:
            sides = zip(masks.shape[1:], factors, strict=True)
            levels.append(masks[(slice(None), *(slice(f // 2, side // f * f, f) for side, f in sides))])
        return levels

    def _truth(self, masks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """masks (B, *spatial) with class 0 where ignored, and 1 where valid, 0 where ignored."""
        valid = masks != self.ignore_index
        return masks.where(valid, 0), valid.to(dtype)

    def _class_sums(self, values: Tensor, truth: Tensor) -> Tensor:
        """(B, num_classes): the sum of values (B, *spatial) over the pixels of each class of each image."""
        cells = values.new_zeros(len(truth), self.num_classes, *truth.shape[2:])
        # A cell for each column of an image, and of a volume for each line along its first axis: neighbours on a GPU
        # never wait for each other's cell, and no sum is so long that float32 loses what is added last.
        return cells.scatter_add(1, truth, values).flatten(2).sum(dim=2)
