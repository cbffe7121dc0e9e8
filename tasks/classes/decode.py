"""The most likely class of each pixel."""

import math

import torch
from torch import Tensor

from tasks.decoder import Decoder


class ClassDecoder(Decoder):
    """Class indices; the probability of each class is the softmax of its logit."""

    reading = "the class of a pixel is the index of its largest logit"

    def decode(self, logits: Tensor, dim: int = 0) -> Tensor:
        return most_likely(logits, dim).to(torch.uint8)

    def probabilities(self, logits: Tensor, dim: int = 0) -> Tensor:
        return logits.softmax(dim)

    def entropy(self, logits: Tensor) -> Tensor:
        """The entropy of the classes' probabilities over its largest value, ln(classes)."""
        return class_entropy(logits)

    def certainty(self, logits: Tensor, dim: int = 0) -> Tensor:
        """The probability of the most likely class; `dim` is dropped."""
        full = logits.float()
        return (full.amax(dim) - full.logsumexp(dim)).exp()

    def logits_from_probabilities(self, probabilities: Tensor, dim: int = 0) -> Tensor:
        # the logarithm of 0 could not be interpolated
        return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def class_entropy(logits: Tensor) -> Tensor:
    """The entropy of the softmax of logits (classes, n, ...) over its largest value, (n, ...)."""
    entropy = torch.special.entr(logits.softmax(dim=0)).sum(dim=0)
    return (entropy / math.log(max(2, len(logits)))).clamp_max(1)  # rounding may exceed it


def most_likely(logits: Tensor, dim: int = 0) -> Tensor:
    """The class with the largest logit, the first of equals: `logits.argmax(dim)`, which takes four times as long."""
    return logits.max(dim).indices
