"""The regions of each pixel, as the label map that is written of them has them."""

import torch
from torch import Tensor

from inference.decoding.overlapping import OverlapDecoder
from tasks.regions import Regions


class RegionDecoder(OverlapDecoder):
    """The regions of the label that is written: that of the last region whose sigmoid is above one half."""

    reading = "a pixel has the label of the last region whose logit is above 0"
    task: Regions

    def decode(self, logits: Tensor, dim: int = 0) -> Tensor:
        answers = super().decode(logits, dim)
        bits = torch.zeros_like(answers)
        for bit, label_bits in enumerate(self.task.bits_of_labels()):
            bits = torch.where((answers >> bit & 1).bool(), label_bits, bits)
        return bits
