"""Logits at the size of an image or of its target."""

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.tiling.cuts import band_length
from inference.tiling.stream import Forward, volume_logits
from runtime.device import upload
from unet.config import UNetConfig


def resize_logits(logits: Tensor, size: Sequence[int]) -> Tensor:
    """(B, num_classes, h, w) -> (B, num_classes, *size): how evaluation and prediction return to a mask's size.

    Logits of volumes are (B, num_classes, d, h, w).
    """
    if tuple(logits.shape[2:]) == tuple(size):
        return logits
    mode = "bilinear" if len(size) == 2 else "trilinear"
    return F.interpolate(full_precision(logits), size=tuple(size), mode=mode, align_corners=False)


def compute_at_sizes(
    forward: Forward, images: Tensor, sizes: Sequence[Sequence[int]], config: UNetConfig
) -> Iterator[Tensor]:
    """Logits (1, outputs, *size) of each image or volume at the size that its target has.

    Images (B, C, H, W) share one forward pass; volumes (B, C, D, H, W) are computed one by one, large ones in tiles.
    """
    if config.dims == 2:
        computed: Iterable[Tensor] = forward(images)
    else:
        computed = (volume_logits(forward, image, config) for image in images)
    for logits, size in zip(computed, sizes, strict=True):
        yield resize_logits(logits[None], size)


def resize_bands(bands: Iterator[Tensor], size: Sequence[int], target: Sequence[int]) -> Iterator[Tensor]:
    """`resize_logits` from `size` to `target` on rows that come one band after another, (num_classes, n, w) each.

    Bands of volumes are slices (num_classes, n, h, w). As many are kept as one band of the target needs.
    """
    source = next(bands)  # rows [first, first + n) of the image, as many as are still needed
    first = 0
    length = band_length(len(source), target)
    for start in range(0, target[0], length):
        stop = min(start + length, target[0])
        positions = torch.arange(start, stop, dtype=source.dtype) + 0.5
        # the source row of each target row, rounded as torch rounds it
        positions = (positions * torch.tensor(size[0] / target[0], dtype=source.dtype) - 0.5).clamp_min(0)
        last = min(int(positions[-1]) + 1, size[0] - 1)
        while first + source.shape[1] <= last:
            done = min(int(positions[0]) - first, source.shape[1])
            source = torch.cat([source[:, done:], next(bands)], dim=1)
            first += done
        if size[0] == target[0]:
            rows = source[:, start - first : stop - first]
        else:
            positions = upload(positions, source.device)  # indices on the CPU would make the host wait
            above = positions.long()
            below = (above + 1).clamp_max(size[0] - 1)
            other_sides = [1] * (len(size) - 1)
            share = (positions - above).view(-1, *other_sides)
            rows = source[:, above - first] * (1 - share) + source[:, below - first] * share
        yield resize_logits(rows[None], (rows.shape[1], *target[1:]))[0]


def full_precision(logits: Tensor) -> Tensor:
    """float32, or float64 where it is that: 16 bits are too few to interpolate."""
    return logits if logits.dtype == torch.float64 else logits.float()
