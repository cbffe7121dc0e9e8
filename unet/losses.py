"""Cross-entropy and Dice from logits, as sums and counts that add up over micro-batches and processes.

A step's loss is sum / count for each of two terms, the pixels' and the regions', with both counts taken over the whole
step. The counts depend on the masks alone, so they are known before the first forward pass, and every micro-batch on
every process contributes its share: the loss does not depend on how the step is split.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unet.config import IGNORE_INDEX

LOSSES = ("ce+dice", "ce", "dice", "focal+dice")
FOCAL_GAMMA = 2.0  # Lin et al. 2017, arXiv:1708.02002


class SegmentationLoss(nn.Module):
    """Cross-entropy (or focal) per valid pixel, plus soft Dice per (image, class present in the truth).

    Dice of image b and class c is 2 sum(p t) / (sum(p) + sum(t)) over valid pixels (Milletari et al. 2016, without
    squares); classes absent from an image's truth are left out, so an empty class is never counted as perfect.

    Args:
        kind: one of `ce+dice`, `ce`, `dice`, `focal+dice`.
        class_weights: (num_classes,) factors on each pixel's cross-entropy; the count is then the sum of the weights.
    """

    def __init__(
        self,
        num_classes: int,
        kind: str = "ce+dice",
        class_weights: Tensor | None = None,
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.pixel_term = kind.removesuffix("+dice")
        self.region_term = kind.endswith("dice")
        self.ignore_index = ignore_index
        weights = torch.ones(num_classes) if class_weights is None else class_weights.float()
        self.register_buffer("class_weights", weights, persistent=False)

    def counts(self, masks: Tensor) -> Tensor:
        """(2,): weight of the valid pixels, number of (image, class) pairs, in masks (B, H, W)."""
        dtype = torch.float32 if masks.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        truth = self._truth(masks)
        pixels = truth.sum(dim=(0, 2, 3)).to(dtype)
        pairs = truth.flatten(2).any(dim=2).sum().to(dtype)
        return torch.stack([(pixels * self.class_weights).sum(), pairs])

    def sums(self, logits: Tensor, masks: Tensor) -> Tensor:
        """(2,): summed pixel term and summed region term, from logits (B, num_classes, H, W) and masks (B, H, W)."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        pixels = regions = logits.new_zeros(())
        if self.pixel_term != "dice":
            pixels = self._pixel_sum(logits, masks)
        if self.region_term:
            truth = self._truth(masks)
            probs = logits.softmax(dim=1) * (masks != self.ignore_index).unsqueeze(1)
            overlap = (probs * truth).sum(dim=(2, 3))
            size = truth.sum(dim=(2, 3))
            dice = 2 * overlap / (probs.sum(dim=(2, 3)) + size).clamp_min(torch.finfo(probs.dtype).tiny)
            regions = ((1 - dice) * (size > 0)).sum()
        return torch.stack([pixels, regions])

    def forward(self, logits: Tensor, masks: Tensor, counts: Tensor) -> Tensor:
        """This micro-batch's share (a scalar) of the loss of the step whose `counts` are given; the shares add up."""
        sums = self.sums(logits, masks)
        return (sums / torch.where(counts > 0, counts, 1).to(sums.dtype)).sum()

    def _truth(self, masks: Tensor) -> Tensor:
        """(B, num_classes, H, W) bool, all false where ignored."""
        classes = torch.arange(self.num_classes, device=masks.device).view(1, -1, 1, 1)
        return masks.unsqueeze(1) == classes

    def _pixel_sum(self, logits: Tensor, masks: Tensor) -> Tensor:
        weights = self.class_weights.to(logits.dtype)
        if self.pixel_term == "ce":
            return F.cross_entropy(logits, masks, weights, ignore_index=self.ignore_index, reduction="sum")
        unweighted = F.cross_entropy(logits, masks, ignore_index=self.ignore_index, reduction="none")
        valid = masks != self.ignore_index
        modulation = (1 - torch.exp(-unweighted)) ** FOCAL_GAMMA
        return (weights[masks * valid] * valid * modulation * unweighted).sum()
