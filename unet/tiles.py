"""Tiles: an image of any size in bounded memory, with the whole image's own result where the network allows it.

A tile that starts on the pooling grid (multiples of 2^depth) and reaches one receptive field beyond the pixels taken
from it, or to the image's border, gives those pixels the logits of the whole image. Where that cannot be (see
`reach`), overlapping tiles are blended with a Gaussian window as in nnU-Net (Isensee et al. 2021).
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from unet.model import UNetConfig

WHOLE_MEMORY = 2**32  # bytes of activations up to which an image is computed whole
TILE_MEMORY = 3 * 2**28  # bytes of activations of a tile
BAND_MEMORY = 2**28  # bytes of logits of a row of tiles
BAND_ROWS = 64  # of the logits that are handed on at once


class Tiling(NamedTuple):
    """Tiles of `height` x `width` that share `overlap` pixels with their neighbours, all multiples of `grid`."""

    height: int
    width: int
    overlap: int
    grid: int
    exact: bool

    def __str__(self) -> str:
        how = "equal to the whole image's result" if self.exact else "blended, not exactly the whole image's result"
        return f"tiles of {self.height} x {self.width} overlapping by {self.overlap} ({how})"


class TileError(ValueError):
    """A tile size or overlap that cannot be, in one line."""


def reach(config: UNetConfig) -> int | None:
    """How many pixels beyond a block aligned to the pooling grid its logits depend on, rounded up to that grid.

    None where they depend on the whole image: group and instance norm, bilinear upsampling with aligned corners. Else
    the first and the last pixel of a block are followed backwards through the network.
    """
    if config.norm != "batch" or config.upsample == "bilinear_aligned":
        return None
    grid = 2**config.depth
    neighbour = 0 if config.upsample == "transpose" else 1  # what interpolation looks at besides
    first, last = 0, grid - 1
    for _ in range(config.depth):  # two 3 x 3 convolutions, then the coarser level that was upsampled
        first, last = (first - 2 - neighbour) // 2, (last + 2 + neighbour) // 2
    for _ in range(config.depth):  # two 3 x 3 convolutions, then the finer level that was pooled
        first, last = 2 * (first - 2), 2 * (last + 2) + 1
    beyond = max(2 - first, last + 2 - (grid - 1))
    return math.ceil(beyond / grid) * grid


def plan(
    config: UNetConfig, size: tuple[int, int], tile_size: int | None = None, overlap: int | None = None
) -> Tiling | None:
    """How to cut a network input of `size` (H, W); None to compute it whole.

    Args:
        tile_size: side of a tile; None computes whole what fits `WHOLE_MEMORY`, and chooses tiles beyond.
        overlap: pixels that neighbours share; None takes what exact tiles need, or half a tile where none are exact.

    Both are rounded up to what the pooling grid allows. Raises TileError for an overlap that leaves nothing of a tile.
    """
    grid, needed = 2**config.depth, reach(config)
    pixel_bytes = 4 * 8 * config.base_channels  # measured: float32, the last concatenation and its convolution
    height, width = size
    if tile_size is None:
        if height * width * pixel_bytes <= WHOLE_MEMORY:
            return None
        pixels = TILE_MEMORY // pixel_bytes
        smallest = 4 * (needed or 8 * grid)  # half of such a tile is overlap
        tallest = max(smallest, BAND_MEMORY // (4 * config.num_classes * width))
        tile_height = min(max(smallest, math.isqrt(pixels)), tallest, _up(height, grid))
        tile_width = max(smallest, pixels // tile_height)
    else:
        tile_height = tile_width = tile_size
    tile_height, tile_width = _up(tile_height, grid), _up(tile_width, grid)
    if height <= tile_height and width <= tile_width:
        return None
    shortest = min(tile_height, tile_width)
    if overlap is None:
        affordable = needed is not None and 2 * needed < shortest
        overlap = 2 * needed if needed is not None and affordable else shortest // 2 // (2 * grid) * 2 * grid
    overlap = _up(overlap, 2 * grid)
    if overlap >= shortest:
        raise TileError(
            f"overlap {overlap} leaves nothing of tiles of {shortest} (both rounded up to the pooling grid)"
        )
    return Tiling(tile_height, tile_width, overlap, grid, needed is not None and overlap >= 2 * needed)


def _up(value: int, step: int) -> int:
    return math.ceil(value / step) * step


def spans(length: int, tile: int, tiling: Tiling) -> list[tuple[int, int]]:
    """(start, stop) of the tiles along a side, all starting on the grid, the last one ending where the image ends."""
    if length <= tile:
        return [(0, length)]
    starts = list(range(0, length - tiling.overlap, tile - tiling.overlap))
    if not tiling.exact:  # norms that look at the whole tile want the last one as large as the others
        starts[-1] = _up(length - tile, tiling.grid)
    return [(start, min(start + tile, length)) for start in starts]


def weights_of(cuts: list[tuple[int, int]], tiling: Tiling) -> list[Tensor]:
    """The weight of each pixel of each tile along a side: 1 or 0 where tiles are exact, else Gaussian."""
    weights = []
    for index, (start, stop) in enumerate(cuts):
        if tiling.exact:
            weight, half = torch.ones(stop - start), tiling.overlap // 2
            weight[: half if index else 0] = 0
            weight[stop - start - (half if index + 1 < len(cuts) else 0) :] = 0
        else:
            place = (torch.arange(stop - start) + 0.5) / (stop - start) - 0.5
            weight = torch.exp(-0.5 * (8 * place) ** 2)  # sigma is an eighth of a tile
        weights.append(weight)
    return weights


def tiled_logits(
    forward: Callable[[Tensor], Tensor],
    read: Callable[[int, int], Tensor],
    size: tuple[int, int],
    tiling: Tiling,
    batch_size_of: Callable[[int, int], int],
) -> Iterator[Tensor]:
    """Logits of an image from top to bottom, (num_classes, n, W) with n up to 64.

    Args:
        forward: (B, C, h, w) -> (B, num_classes, h, w).
        read: rows [start, stop) of the network's input, (C, stop - start, W).
        size: (H, W) of the network's input.

    Memory: W x tile height x classes, and what one batch of tiles needs.
    """
    rows, columns = spans(size[0], tiling.height, tiling), spans(size[1], tiling.width, tiling)
    row_weights, column_weights = weights_of(rows, tiling), weights_of(columns, tiling)
    # a tile's weight at a pixel is the product of its row's and its column's, and so is their sum over the tiles
    row_totals, column_totals = _totals(rows, row_weights), _totals(columns, column_weights)
    rest: Tensor | None = None  # sums of the rows that the next tiles share
    for index, (top, bottom) in enumerate(rows):
        band, height = read(top, bottom), bottom - top
        for group in _batches(columns, partial(batch_size_of, height)):
            logits = forward(torch.stack([band[:, :, slice(*columns[i])] for i in group]))
            if group[0] == 0:
                sums = logits.new_zeros(logits.shape[1], height, size[1])
            for tile, i in zip(logits, group, strict=True):
                weight = row_weights[index][:, None] * column_weights[i]
                sums[:, :, slice(*columns[i])] += weight.to(tile) * tile
        if rest is not None:
            sums[:, : rest.shape[1]] += rest
        next_top = rows[index + 1][0] if index + 1 < len(rows) else bottom
        rest = sums[:, next_top - top :].clone()
        for start in range(top, next_top, BAND_ROWS):
            stop = min(start + BAND_ROWS, next_top)
            totals = row_totals[start:stop, None] * column_totals
            yield sums[:, start - top : stop - top] / totals.to(sums)


def _totals(cuts: list[tuple[int, int]], weights: list[Tensor]) -> Tensor:
    """The summed weight of all tiles at each pixel along a side."""
    totals = torch.zeros(cuts[-1][1])
    for (start, stop), weight in zip(cuts, weights, strict=True):
        totals[start:stop] += weight
    return totals


def _batches(cuts: list[tuple[int, int]], batch_size_of: Callable[[int], int]) -> Iterator[list[int]]:
    """Indices of neighbouring tiles of one width, as many as share a forward pass."""
    for width, group in groupby(range(len(cuts)), key=lambda i: cuts[i][1] - cuts[i][0]):
        members, size = list(group), batch_size_of(width)
        yield from (members[start : start + size] for start in range(0, len(members), size))
