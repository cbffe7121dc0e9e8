"""Logits of tiles, summed by the weight of each pixel into those of an image or a volume."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from data_utils.loading.batch_sampler import images_per_batch
from inference.tiling.planning import Tiling, round_up
from runtime.device import widest_float
from runtime.parallel import map_ahead

Forward = Callable[[Tensor], Tensor]  # (B, C, ...) -> (B, num_classes, ...)
Span = tuple[int, int]  # [start, stop) along an axis

STRIP_ROWS = 64  # rows of an image whose logits are passed on at once
STRIP_BYTES = 2**24  # bytes of the logits of a volume that are passed on at once


def strip_length(num_classes: int, size: Sequence[int]) -> int:
    """The number of rows of an image of `size` (H, W), or slices of a volume (D, H, W), that are passed on at once."""
    if len(size) == 2:
        return STRIP_ROWS
    slice_bytes = 4 * num_classes * size[1] * size[2]
    return max(1, STRIP_BYTES // slice_bytes)


class Axis(NamedTuple):
    """The tiles along an axis.

    Args:
        weights: those of the pixels of each tile.
        totals: the sum of weights over all tiles, of each pixel along the axis.
    """

    weights: list[Tensor]
    totals: Tensor


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
            return read(*span)

    axis_spans = [_spans(length, axis, tiling) for axis, length in enumerate(size)]
    axes: list[Axis] = []
    shared: Tensor | None = None  # the sums of the pixels that a row shares with the next one
    rows_ahead = int(len(size) == 2)
    for number, row in enumerate(map_ahead(read_row, axis_spans[0], ahead=rows_ahead)):
        sums: Tensor | None = None
        for numbers, logits in _tile_logits(forward, row, number, axis_spans, pixels):
            if not axes:
                axes = [_weigh(spans, axis, tiling, logits.device) for axis, spans in enumerate(axis_spans)]
            if sums is None:
                sums = logits.new_zeros(len(logits), *row.shape[1:])
                if shared is not None and len(size) == 3:  # half of a row: there is no room for it beside the sums
                    sums[:, : shared.shape[1]] = shared
                    shared = None
            weight = _outer([axis.weights[tile] for axis, tile in zip(axes, numbers, strict=True)])
            sums[_window(axis_spans, numbers)] += weight.to(logits.dtype) * logits
        assert sums is not None  # a row has tiles
        del logits  # of the last tiles
        if shared is not None:
            sums[:, : shared.shape[1]] += shared
        first, *others = [axis.totals for axis in axes]
        top, bottom = axis_spans[0][number]
        if number + 1 < len(axis_spans[0]):
            bottom = axis_spans[0][number + 1][0]
        length = strip_length(len(sums), sums.shape[1:])
        for start in range(top, bottom, length):
            stop = min(start + length, bottom)
            # a tile's weight is the product of its weights along each axis, and so is their sum over all tiles
            totals = _outer([first[start:stop], *others])
            yield sums[:, start - top : stop - top] / totals.to(sums.dtype)
        shared = sums[:, bottom - top :].clone()
        del sums  # they are freed before the next row's are made


def stream_image(forward: Forward, image: Tensor, tiling: Tiling, pixels: int) -> Iterator[Tensor]:
    """`stream_logits` of an image or a volume (C, *spatial) in memory."""
    return stream_logits(forward, lambda start, stop: image[:, start:stop], image.shape[1:], tiling, pixels)


def _tile_logits(
    forward: Forward, row: Tensor, number: int, axis_spans: Sequence[Sequence[Span]], pixels: int
) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """The numbers of each tile of a row along all axes, and its logits; tiles of one shape share forward passes."""
    tiles_by_shape: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    numbers_along_axes = [range(len(spans)) for spans in axis_spans[1:]]
    for others in product(*numbers_along_axes):
        numbers = (number, *others)
        spans = [of_axis[tile] for of_axis, tile in zip(axis_spans, numbers, strict=True)]
        shape = tuple(stop - start for start, stop in spans)
        tiles_by_shape.setdefault(shape, []).append(numbers)
    for shape, tiles in tiles_by_shape.items():
        count = images_per_batch(pixels, shape)
        for start in range(0, len(tiles), count):
            batch = tiles[start : start + count]
            logits = forward(torch.stack([row[_window(axis_spans, numbers)] for numbers in batch]))
            yield from zip(batch, logits, strict=True)


def _window(axis_spans: Sequence[Sequence[Span]], numbers: Sequence[int]) -> tuple:
    """The index of a tile's pixels or logits in the arrays of its row."""
    window: list = [...]
    for spans, number in zip(axis_spans[1:], numbers[1:], strict=True):
        window.append(slice(*spans[number]))
    return tuple(window)


def _outer(factors: Sequence[Tensor]) -> Tensor:
    """The product of vectors, each along an axis of its own."""
    result = factors[0]
    for factor in factors[1:]:
        result = result[..., None] * factor
    return result


def _spans(length: int, axis: int, tiling: Tiling) -> list[Span]:
    """The tiles along an axis: all start on the grid, and the last one ends where the image ends."""
    tile, overlap = tiling.size[axis], tiling.overlap[axis]
    if length <= tile:
        return [(0, length)]
    starts = list(range(0, length - overlap, tile - overlap))
    if not tiling.exact:  # norms over the whole tile need a last tile as large as the others
        starts[-1] = round_up(length - tile, tiling.grid[axis])
    return [(start, min(start + tile, length)) for start in starts]


def _weigh(spans: Sequence[Span], axis: int, tiling: Tiling, device: torch.device) -> Axis:
    """The weights of the tiles along an axis: 1 or 0 if tiles are exact, else Gaussian."""
    dtype = widest_float(device)
    half = tiling.overlap[axis] // 2
    weights = []
    totals = torch.zeros(spans[-1][1], dtype=dtype, device=device)
    for index, (start, stop) in enumerate(spans):
        length = stop - start
        if tiling.exact:
            weight = torch.ones(length, dtype=dtype, device=device)
            if index:
                weight[:half] = 0
            if index + 1 < len(spans):
                weight[length - half :] = 0
        else:
            position = (torch.arange(length, dtype=dtype, device=device) + 0.5) / length - 0.5
            weight = torch.exp(-0.5 * (8 * position) ** 2)  # sigma is an eighth of a tile
        weights.append(weight)
        totals[start:stop] += weight
    return Axis(weights, totals)
