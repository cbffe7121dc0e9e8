"""The classes of each pixel, of which there may be several."""

import torch
from torch import Tensor

from tasks.decoder import Decoder


class OverlapDecoder(Decoder):
    """A bit for each class whose sigmoid is above one half; the probability of each is its sigmoid."""

    reading = "a pixel has each class whose logit is above 0"

    def decode(self, logits: Tensor, dim: int = 0) -> Tensor:
        bits = torch.zeros((), dtype=torch.int32, device=logits.device)
        for bit, class_logits in enumerate(logits.unbind(dim)):
            bits = bits | (class_logits > 0).int() << bit
        return bits

    def certainty(self, logits: Tensor) -> Tensor:
        """The probability of each class, (outputs, n, ...)."""
        return logits.sigmoid()
