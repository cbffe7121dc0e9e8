"""Logits at the size of an image or of its target."""

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from data_utils.loading.batch_sampler import pixels_per_batch
from inference.tiling.planning import Tiling, choose_tiling
from inference.tiling.stream import Forward, stream_image, strip_length
from runtime.device import full_precision, upload
from runtime.machine import is_out_of_memory
from unet.config import UNetConfig

WHOLE_LOGITS = 2**31  # bytes; an evaluation keeps logits of up to this size, at the target's size, as a whole


def resize_logits(logits: Tensor, size: Sequence[int]) -> Tensor:
    """(B, num_classes, h, w) -> (B, num_classes, *size): evaluation and prediction resize logits to a mask's size so.

    Logits of volumes are (B, num_classes, d, h, w).
    """
    if tuple(logits.shape[2:]) == tuple(size):
        return logits
    mode = "bilinear" if len(size) == 2 else "trilinear"
    return F.interpolate(full_precision(logits), size=tuple(size), mode=mode, align_corners=False)


def strips_at_sizes(
    forward: Forward, images: Tensor, sizes: Sequence[Sequence[int]], config: UNetConfig
) -> Iterator[Iterator[Tensor]]:
    """For each image or volume, strips of its logits (1, outputs, n, ...) from top to bottom, at its target's size.

    If `choose_tiling` returns None, images (B, C, H, W) share one forward pass and volumes (B, C, D, H, W) are computed
    one by one; else each is computed in tiles, and if memory runs out, in tiles of a quarter of its longest side. An
    input that is computed whole is one strip, unless its logits take more than WHOLE_LOGITS.
    """
    input_size = images.shape[2:]
    pixels = pixels_per_batch(images.device)
    tiling = choose_tiling(config, input_size)
    if tiling is None:
        whole = _predict_whole(forward, images, config)
        if whole is not None:
            yield from map(_strips_of_whole, whole, sizes)
            return
        tiling = choose_tiling(config, input_size, math.ceil(max(input_size) / 4), adds_reach=True)
        if tiling is None:  # a tile would be a whole image
            tiling = Tiling(tuple(input_size), (0,) * len(input_size), (1,) * len(input_size), exact=True)
        pixels = 1  # one tile at a time
    for image, size in zip(images, sizes, strict=True):
        strips = stream_image(forward, image, tiling, pixels)
        yield (strip[None] for strip in resize_strips(strips, input_size, size))


def _predict_whole(forward: Forward, images: Tensor, config: UNetConfig) -> list[Tensor] | None:
    """The logits of each image; None if memory runs out."""
    batches = [images] if config.dims == 2 else images.split(1)
    logits: list[Tensor] = []
    try:
        for batch in batches:
            logits += forward(batch)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    return logits


def _strips_of_whole(logits: Tensor, size: Sequence[int]) -> Iterator[Tensor]:
    """`strips_at_sizes` of an input, from its logits (outputs, ...) as a whole."""
    if 4 * len(logits) * math.prod(size) <= WHOLE_LOGITS:
        yield resize_logits(logits[None], size)
    else:
        for strip in resize_strips(iter([logits]), logits.shape[1:], size):
            yield strip[None]


def resize_strips(strips: Iterator[Tensor], size: Sequence[int], target: Sequence[int]) -> Iterator[Tensor]:
    """`resize_logits` from `size` to `target` on rows that come one strip after another, (num_classes, n, w) each.

    Strips of volumes are slices (num_classes, n, h, w). Only the rows or slices for one strip of the target are kept.
    """
    source = next(strips)  # rows [first, first + n) of the image, as many as are still needed
    first = 0
    length = strip_length(len(source), target)
    for start in range(0, target[0], length):
        stop = min(start + length, target[0])
        positions = torch.arange(start, stop, dtype=source.dtype) + 0.5
        # the source row of each target row, rounded as torch rounds it
        positions = (positions * torch.tensor(size[0] / target[0], dtype=source.dtype) - 0.5).clamp_min(0)
        last = min(int(positions[-1]) + 1, size[0] - 1)
        while first + source.shape[1] <= last:
            finished_rows = min(int(positions[0]) - first, source.shape[1])
            source = torch.cat([source[:, finished_rows:], next(strips)], dim=1)
            first += finished_rows
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
