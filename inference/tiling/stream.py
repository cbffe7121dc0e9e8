"""Logits of tiles, summed by the weight of each pixel into those of an image or a volume."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from data_utils.loading.batch_sampler import images_per_batch
from inference.tiling.planning import Tiling, round_up
from runtime.device import upload_like
from runtime.parallel import map_ahead

Forward = Callable[[Tensor], Tensor]  # (B, C, ...) -> (B, num_classes, ...)

STRIP_ROWS = 64  # rows of an image whose logits are passed on at once
STRIP_BYTES = 2**24  # bytes of the logits of a volume that are passed on at once


def strip_length(num_classes: int, size: Sequence[int]) -> int:
    """The number of rows of an image of `size` (H, W), or slices of a volume (D, H, W), that are passed on at once."""
    if len(size) == 2:
        return STRIP_ROWS
    slice_bytes = 4 * num_classes * size[1] * size[2]
    return max(1, STRIP_BYTES // slice_bytes)


class Span(NamedTuple):
    """The pixels [start, stop) of a tile along an axis.

    Args:
        weight: (stop - start,) float64; at each pixel, the weights of all tiles that have it add up to 1.
    """

    start: int
    stop: int
    weight: Tensor


def stream_logits(
    forward: Forward,
    read: Callable[[int, int], Tensor],
    size: Sequence[int],
    tiling: Tiling,
    pixels: int,
) -> Iterator[Tensor]:
    """Logits of an image from top to bottom, (num_classes, n, W), or of a volume, (num_classes, n, H, W).

    Tiles with the same span along the first axis are called a row, in a volume too.

    Args:
        forward: (B, C, h, w) -> (B, num_classes, h, w); for volumes, d stands before h.
        read: returns rows [start, stop) of the network's input, (C, stop - start, W), or slices
            (C, stop - start, H, W). It is called in a thread, for images one row of tiles ahead; two rows of a volume
            would be as large as its logits.
        size: (H, W) or (D, H, W) of the network's input.
        pixels: how many pixels share a forward pass.

    Memory: W (x H) x the first side of a tile x classes, and the memory of one batch of tiles.
    """
    is_inference = torch.is_inference_mode_enabled()

    def read_row(span: Span) -> Tensor:
        with torch.inference_mode(is_inference):  # a thread begins in the usual mode
            return read(span.start, span.stop)

    first_axis, *other_axes = [_spans(length, axis, tiling) for axis, length in enumerate(size)]
    next_starts = [span.start for span in first_axis[1:]]
    shared: Tensor | None = None  # the sums of the pixels that a row shares with the next one
    rows = map_ahead(read_row, first_axis, ahead=int(len(size) == 2))
    for span, row, bottom in zip(first_axis, rows, [*next_starts, size[0]], strict=True):
        sums: Tensor | None = None
        for window, weight, logits in _tile_logits(forward, row, span, other_axes, pixels):
            if sums is None:
                sums = logits.new_zeros(len(logits), *row.shape[1:])
                if shared is not None:
                    sums[:, : shared.shape[1]] = shared
                    shared = None  # in a volume it is half of a row: there is no room for it beside the sums
            sums[window] += weight * logits
        assert sums is not None  # a row has tiles
        del logits  # of the last tiles
        finished = bottom - span.start
        for strip in sums[:, :finished].split(strip_length(len(sums), sums.shape[1:]), dim=1):
            yield strip.clone()  # whoever keeps it does not keep the sums
        shared = sums[:, finished:].clone()
        del sums, strip  # they are freed before the next row's are made


def stream_image(forward: Forward, image: Tensor, tiling: Tiling, pixels: int) -> Iterator[Tensor]:
    """`stream_logits` of an image or a volume (C, *spatial) in memory."""
    return stream_logits(forward, lambda start, stop: image[:, start:stop], image.shape[1:], tiling, pixels)


def _tile_logits(
    forward: Forward, row: Tensor, span: Span, other_axes: Sequence[Sequence[Span]], pixels: int
) -> Iterator[tuple[tuple, Tensor, Tensor]]:
    """The window, the weight and the logits of each tile of a row; tiles of one shape share forward passes."""
    tiles_by_shape: dict[tuple[int, ...], list[tuple[Span, ...]]] = {}
    for others in product(*other_axes):
        shape = tuple(len(side.weight) for side in (span, *others))
        tiles_by_shape.setdefault(shape, []).append(others)
    for shape, tiles in tiles_by_shape.items():
        count = images_per_batch(pixels, shape)
        for start in range(0, len(tiles), count):
            batch = tiles[start : start + count]
            windows = list(map(_window, batch))
            batch_logits = forward(torch.stack([row[window] for window in windows]))
            for others, window, logits in zip(batch, windows, batch_logits, strict=True):
                yield window, _weight((span, *others), logits), logits


def _window(spans: Sequence[Span]) -> tuple:
    """The index of a tile's pixels in the arrays of its row."""
    return (..., *(slice(span.start, span.stop) for span in spans))


def _weight(spans: Sequence[Span], logits: Tensor) -> Tensor:
    """The weight of each pixel of a tile: the product of those along each axis."""
    weight = torch.ones((), dtype=logits.dtype, device=logits.device)
    for span in spans:
        weight = weight[..., None] * upload_like(span.weight, logits)
    return weight


def _spans(length: int, axis: int, tiling: Tiling) -> list[Span]:
    """The tiles along an axis: all start on the grid, and the last one ends where the image ends.

    The weights of exact tiles are 1 or 0, those of others Gaussian.
    """
    side = tiling.size[axis]
    overlap = tiling.overlap[axis]
    starts = [0]
    if length > side:
        starts = list(range(0, length - overlap, side - overlap))
        if not tiling.exact:  # norms over the whole tile need a last tile as large as the others
            starts[-1] = round_up(length - side, tiling.grid[axis])
    spans = []
    totals = torch.zeros(length, dtype=torch.float64)
    for start in starts:
        stop = min(start + side, length)
        position = (torch.arange(stop - start, dtype=torch.float64) + 0.5) / (stop - start) - 0.5
        weight = torch.exp(-0.5 * (8 * position) ** 2)  # sigma is an eighth of a tile
        if tiling.exact:
            weight = torch.ones_like(position)
            if start > 0:
                weight[: overlap // 2] = 0
            if stop < length:
                weight[stop - start - overlap // 2 :] = 0
        totals[start:stop] += weight
        spans.append(Span(start, stop, weight))
    for span in spans:
        span.weight.div_(totals[span.start : span.stop])
    return spans
