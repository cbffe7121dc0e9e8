"""The regions of each pixel, as in the label map that prediction writes."""

import torch
from torch import Tensor

from tasks.overlapping.decode import OverlapDecoder
from tasks.regions.loss import Regions


class RegionDecoder(OverlapDecoder):
    """The regions that the written label stands for: the label of the last region whose sigmoid is above one half."""

    reading = "a pixel has the label of the last region whose logit is above 0"
    task: Regions

    def decode(self, logits: Tensor, dim: int = 0) -> Tensor:
        answers = super().decode(logits, dim)
        bits = torch.zeros_like(answers)
        for bit, label_bits in enumerate(self.task.label_bits()):
            bits = torch.where((answers >> bit & 1).bool(), label_bits, bits)
        return bits
