"""Operations on logits: resizing, averaging, and the most likely class."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference.tiling.cuts import band_length
from inference.tiling.stream import Forward, volume_logits
from runtime.device import download, upload
from unet.config import UNetConfig


def resize_logits(logits: Tensor, size: Sequence[int]) -> Tensor:
    """(B, num_classes, h, w) -> (B, num_classes, *size): how evaluation and prediction return to a mask's size.

    Of volumes (B, num_classes, d, h, w).
    """
    if tuple(logits.shape[2:]) == tuple(size):
        return logits
    mode = "bilinear" if len(size) == 2 else "trilinear"
    return F.interpolate(full_precision(logits), size=tuple(size), mode=mode, align_corners=False)


def evaluation_logits(
    forward: Forward, images: Tensor, masks: Sequence[Tensor], config: UNetConfig
) -> Iterator[Tensor]:
    """Logits (1, num_classes, *size) of each image or volume at the size of its mask.

    Images (B, C, H, W) share one forward pass; volumes (B, C, D, H, W) are computed one by one, large ones in tiles.
    """
    every = forward(images) if config.dims == 2 else (volume_logits(forward, image, config) for image in images)
    for logits, mask in zip(every, masks, strict=True):
        yield resize_logits(logits[None], mask.shape)


def resize_bands(bands: Iterator[Tensor], size: Sequence[int], target: Sequence[int]) -> Iterator[Tensor]:
    """`resize_logits` from `size` to `target` on rows that come one band after another, (num_classes, n, w) each.

    Of volumes slices (num_classes, n, h, w). As many are kept as one band of the target needs.
    """
    kept, first = next(bands), 0  # rows [first, first + n) of the image, as many as are still needed
    length = band_length(len(kept), target)
    for start in range(0, target[0], length):
        places = torch.arange(start, min(start + length, target[0]), dtype=kept.dtype) + 0.5
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
            below, share = (above + 1).clamp_max(size[0] - 1), (places - above).view(-1, *[1] * (len(size) - 1))
            rows = kept[:, above - first] * (1 - share) + kept[:, below - first] * share
        yield resize_logits(rows[None], (rows.shape[1], *target[1:]))[0]


def most_likely(logits: Tensor, dim: int = 0) -> Tensor:
    """The class with the largest logit, the first of equals: `logits.argmax(dim)`, which takes four times as long."""
    return logits.max(dim).indices


def read_prediction(logits: Tensor, *, probabilities: bool) -> list[np.ndarray]:
    """Logits (num_classes, H, W) -> [class indices (H, W) uint8], and probabilities (num_classes, H, W) if asked for.

    Of volumes with D before H. The host waits once for both.
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


def averaged_views(network: nn.Module, batch: Tensor) -> Tensor:
    """Logits of a batch, averaged over the views that the network was trained on.

    They are the eight flips and quarter turns of images, or the eight mirrorings of volumes; or two, the batch as it is
    and mirrored left-right.
    """
    if not network.config.preprocess.turned:
        turns: list[tuple[int, tuple[int, ...]]] = [(0, ()), (0, (batch.ndim - 1,))]
    elif batch.ndim == 4:
        turns = [(count, axes) for count in range(4) for axes in ((), (3,))]
    else:  # whose axes may have other spacings
        turns = [(0, axes) for count in range(4) for axes in combinations((2, 3, 4), count)]
    views = [
        full_precision(network(batch.rot90(turn, (2, 3)).flip(axes)).flip(axes).rot90(-turn, (2, 3)))
        for turn, axes in turns
    ]
    return average_logits(views, dim=1)
