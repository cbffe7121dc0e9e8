"""The uncertainty of pixels, as the files of --uncertainty hold it."""

import torch
from torch import Tensor

from inference.decoding.decoder import Decoder

UNSURE_LEVEL = 255  # the level of an answer that is as likely as any other


def uncertainty_levels(decoder: Decoder, logits: Tensor) -> Tensor:
    """The entropy of a strip of logits (outputs, n, ...) as uint8 (n, ...), 255 where it is the largest."""
    return (decoder.entropy(logits) * UNSURE_LEVEL).round().to(torch.uint8)
