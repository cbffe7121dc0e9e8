"""Predictions from logits."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.decoding.classes import most_likely
from runtime.device import download, upload


def read_prediction(logits: Tensor, *, probabilities: bool) -> list[np.ndarray]:
    """Logits (num_classes, H, W) -> [class indices (H, W) uint8], and probabilities (num_classes, H, W) if asked for.

    Of volumes with D before H. The host waits once for both.
    """
    wanted = [most_likely(logits).to(torch.uint8), *([logits.softmax(dim=0)] if probabilities else [])]
    return [tensor.numpy() for tensor in download(wanted)]


def average_logits(logits: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Logits whose softmax is the mean of the softmax of each."""
    if len(logits) == 1:
        return logits[0]
    # an ONNX file's are on the CPU, whatever computes the others
    device = next((view.device for view in logits if not view.is_cpu), logits[0].device)
    views = [view if view.device == device else upload(view, device) for view in logits]
    mean = sum(view.softmax(dim) for view in views) / len(views)
    return mean.clamp_min(torch.finfo(mean.dtype).tiny).log()  # the logarithm of 0 could not be interpolated
