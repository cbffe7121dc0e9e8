"""The classes or regions of each pixel, of which there may be several."""

import torch
from torch import Tensor

from tasks.decoder import Decoder
from tasks.overlapping.loss import Regions


class OverlapDecoder(Decoder):
    """A bit for each class whose sigmoid is above one half; the probability of each is its sigmoid."""

    reading = "a pixel has each class whose logit is above 0"

    def decode(self, logits: Tensor) -> Tensor:
        bits = torch.zeros((), dtype=torch.int32, device=logits.device)
        for bit, class_logits in enumerate(logits.unbind(1)):
            bits = bits | (class_logits > 0).int() << bit
        return bits

    def certainty(self, logits: Tensor) -> Tensor:
        """The probability of each class, in the shape of the logits."""
        return logits.float().sigmoid()


class RegionDecoder(OverlapDecoder):
    """The regions that the written label stands for: the label of the last region whose sigmoid is above one half."""

    reading = "a pixel has the label of the last region whose logit is above 0"
    task: Regions

    def decode(self, logits: Tensor) -> Tensor:
        bits = torch.zeros((), dtype=torch.int32, device=logits.device)
        for region_logits, label_bits in zip(logits.unbind(1), self.task.label_bits(), strict=True):
            bits = torch.where(region_logits > 0, label_bits, bits)
        return bits
