"""Operations on logits: resizing, averaging, and the most likely class."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inference.tiling import BAND_ROWS
from runtime.device import download, upload


def resize_logits(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, num_classes, h, w) -> (B, num_classes, *size): how evaluation and prediction return to a mask's size."""
    if tuple(logits.shape[-2:]) == tuple(size):
        return logits
    return F.interpolate(full_precision(logits), size=size, mode="bilinear", align_corners=False)


def resize_bands(bands: Iterator[Tensor], size: tuple[int, int], target: tuple[int, int]) -> Iterator[Tensor]:
    """`resize_logits` from `size` to `target` on rows that come one band after another, (num_classes, n, w) each."""
    kept, first = next(bands), 0  # rows [first, first + n) of the image, as many as are still needed
    for start in range(0, target[0], BAND_ROWS):
        places = torch.arange(start, min(start + BAND_ROWS, target[0]), dtype=kept.dtype) + 0.5
        # the source row of each target row, rounded as torch rounds it
        places = (places * torch.tensor(size[0] / target[0], dtype=kept.dtype) - 0.5).clamp_min(0)
        last = min(int(places[-1]) + 1, size[0] - 1)
        while first + kept.shape[1] <= last:
            done = min(int(places[0]) - first, kept.shape[1])
            kept, first = torch.cat([kept[:, done:], next(bands)], dim=1), first + done
        if size[0] == target[0]:
            rows = kept[:, start - first : start - first + len(places)]
        else:
            places = upload(places, kept.device)  # indices on the CPU would make the host wait
            above = places.long()
            below, share = (above + 1).clamp_max(size[0] - 1), (places - above)[:, None]
            rows = kept[:, above - first] * (1 - share) + kept[:, below - first] * share
        yield resize_logits(rows[None], (rows.shape[1], target[1]))[0]


def most_likely(logits: Tensor, dim: int = 0) -> Tensor:
    """The class with the largest logit, the first of equals: `logits.argmax(dim)`, which takes four times as long."""
    return logits.max(dim).indices


def read_prediction(logits: Tensor, *, probabilities: bool) -> list[np.ndarray]:
    """Logits (num_classes, H, W) -> [class indices (H, W) uint8], and probabilities (num_classes, H, W) if asked for.

    The host waits once for both.
    """
    wanted = [most_likely(logits).to(torch.uint8), *([logits.softmax(dim=0)] if probabilities else [])]
    return [tensor.numpy() for tensor in download(wanted)]


def full_precision(logits: Tensor) -> Tensor:
    """float32, or float64 where it is that: 16 bits are too few to interpolate."""
    return logits if logits.dtype == torch.float64 else logits.float()


def average_logits(logits: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Logits whose softmax is the mean of the softmax of each."""
    if len(logits) == 1:
        return logits[0]
    # an ONNX file's are on the CPU, whatever computes the others
    device = next((view.device for view in logits if not view.is_cpu), logits[0].device)
    views = [view if view.device == device else upload(view, device) for view in logits]
    mean = sum(view.softmax(dim) for view in views) / len(views)
    return mean.clamp_min(torch.finfo(mean.dtype).tiny).log()  # the logarithm of 0 could not be interpolated
