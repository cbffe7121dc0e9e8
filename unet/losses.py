"""Cross-entropy and Dice from logits, as sums and counts that add up over micro-batches and processes.

A step's loss is sum / count for each of two terms, the pixels' and the regions', with both counts taken over the whole
step. The counts depend on the masks alone, so they are known before the first forward pass, and every micro-batch on
every process contributes its share: the loss does not depend on how the step is split.
"""

import torch
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
        truth, valid = self._truth(masks, dtype)
        sizes = self._class_sums(valid, truth)
        return torch.stack([(sizes * self.class_weights).sum(), (sizes > 0).sum().to(dtype)])

    def sums(self, logits: Tensor, masks: Tensor) -> Tensor:
        """(2,): summed pixel term and summed region term, from logits (B, num_classes, H, W) and masks (B, H, W)."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        truth, valid = self._truth(masks, logits.dtype)
        log_probs = logits.log_softmax(dim=1)
        # not `cross_entropy`: its sum over (B, C, H, W) is not deterministic on CUDA, and Dice needs the terms
        log_truth = log_probs.gather(1, truth.unsqueeze(1)).squeeze(1)  # (B, H, W), of each pixel's true class
        pixels = regions = logits.new_zeros(())
        if self.pixel_term != "dice":
            weights = self.class_weights.to(logits.dtype).index_select(0, truth.flatten()).view_as(valid) * valid
            if self.pixel_term == "focal":
                weights = weights * (1 - log_truth.exp()) ** FOCAL_GAMMA
            pixels = -(weights * log_truth).sum()
        if self.region_term:
            # (B, num_classes) each: sum(p t), sum(p), sum(t)
            overlap = self._class_sums(log_truth.exp() * valid, truth)
            predicted = (log_probs.exp() * valid.unsqueeze(1)).sum(dim=(2, 3))
            size = self._class_sums(valid, truth)
            dice = 2 * overlap / (predicted + size).clamp_min(torch.finfo(predicted.dtype).tiny)
            regions = ((1 - dice) * (size > 0)).sum()
        return torch.stack([pixels, regions])

    def forward(self, logits: Tensor, masks: Tensor, counts: Tensor) -> Tensor:
        """This micro-batch's share (a scalar) of the loss of the step whose `counts` are given; the shares add up."""
        sums = self.sums(logits, masks)
        return (sums / torch.where(counts > 0, counts, 1).to(sums.dtype)).sum()

    def _truth(self, masks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """masks (B, H, W) with class 0 where ignored, and 1 where valid, 0 where ignored."""
        valid = masks != self.ignore_index
        return masks.where(valid, 0), valid.to(dtype)

    def _class_sums(self, values: Tensor, truth: Tensor) -> Tensor:
        """(B, num_classes): the sum of values (B, H, W) over the pixels of each class of each image."""
        cells = values.new_zeros(len(truth), self.num_classes, truth.shape[2])
        # A cell for each column of an image: neighbours on a GPU never wait for each other's cell, and no sum is so
        # long that float32 loses what is added last.
        return cells.scatter_add(1, truth, values).sum(dim=2)
