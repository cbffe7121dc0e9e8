"""Tiles: an image of any size in bounded memory, with the whole image's own result where the network allows it.

A tile that starts on the pooling grid (multiples of 2^depth) and reaches one receptive field beyond the pixels taken
from it, or to the image's border, gives those pixels the logits of the whole image. Where that cannot be (see
`reach`), overlapping tiles are blended with a Gaussian window as in nnU-Net (Isensee et al. 2021).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from data_utils.loading.batch_sampler import images_per_batch
from inference.receptive_field import reach
from runtime.device import upload
from runtime.errors import SettingsError
from runtime.parallel import map_ahead
from unet.config import UNetConfig

Forward = Callable[[Tensor], Tensor]  # (B, C, h, w) -> (B, num_classes, h, w)

WHOLE_MEMORY = 2**32  # bytes of activations up to which an image is computed whole
TILE_MEMORY = 2**27  # bytes of activations of a tile
LARGE_TILE_MEMORY = 3 * 2**28  # the same of a wide network, whose tiles would else be overlap for the most part
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


def plan(
    config: UNetConfig, size: tuple[int, int], tile_size: int | None = None, overlap: int | None = None
) -> Tiling | None:
    """How to cut a network input of `size` (H, W); None to compute it whole.

    Args:
        tile_size: side of a tile; None computes whole what fits into 4 GB, or into 0.8 where exact tiles cost little,
            and chooses tiles beyond.
        overlap: pixels that neighbours share; None takes what exact tiles need, or half a tile where none are exact.

    Both are rounded up to the pooling grid. Raises SettingsError for an overlap that leaves nothing of a tile.
    """
    grid = 2**config.depth
    pixel_bytes = 4 * 8 * config.base_channels  # measured: float32, the last concatenation and its convolution
    height, width = size
    if config.encoder is not None and tile_size is None and height * width * pixel_bytes <= WHOLE_MEMORY:
        return None  # how far it looks takes seconds to measure, and is never little
    needed = reach(config)
    if tile_size is None:
        smallest, decent = (times * (needed or 8 * grid) for times in (4, 10))  # overlap is a half, a fifth of a side
        # tiles of a narrow network are as good as the whole image and, in a CPU's caches, faster
        cheap = needed is not None and decent**2 * pixel_bytes <= LARGE_TILE_MEMORY
        if height * width * pixel_bytes <= (LARGE_TILE_MEMORY if cheap else WHOLE_MEMORY):
            return None
        pixels = max(TILE_MEMORY // pixel_bytes, min(decent**2, LARGE_TILE_MEMORY // pixel_bytes))
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
        raise SettingsError(
            f"overlap {overlap} leaves nothing of tiles of {shortest} (both rounded up to the pooling grid)"
        )
    return Tiling(tile_height, tile_width, overlap, grid, needed is not None and overlap >= 2 * needed)


def one_tile(size: tuple[int, int]) -> Tiling:
    """A tiling of a network's input of `size` (H, W) that is one tile."""
    return Tiling(*size, overlap=0, grid=1, exact=True)


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
            weight, half = torch.ones(stop - start, dtype=torch.float64), tiling.overlap // 2
            weight[: half if index else 0] = 0
            weight[stop - start - (half if index + 1 < len(cuts) else 0) :] = 0
        else:
            place = (torch.arange(stop - start, dtype=torch.float64) + 0.5) / (stop - start) - 0.5
            weight = torch.exp(-0.5 * (8 * place) ** 2)  # sigma is an eighth of a tile
        weights.append(weight)
    return weights


class Cuts:
    """Where the tiles of a network's input of `size` (H, W) lie, and what each of their pixels counts for."""

    def __init__(self, size: tuple[int, int], tiling: Tiling) -> None:
        self.rows, self.columns = spans(size[0], tiling.height, tiling), spans(size[1], tiling.width, tiling)
        # a tile's weight at a pixel is the product of its row's and its column's, and so is their sum over the tiles
        self.row_weights, self.column_weights = weights_of(self.rows, tiling), weights_of(self.columns, tiling)
        self.row_totals = _totals(self.rows, self.row_weights)
        self.column_totals = _totals(self.columns, self.column_weights)

    def to(self, device: torch.device) -> None:
        """Bring the weights, in one upload, to the device of the logits, unless they are there."""
        if self.row_totals.device != device:
            dtype = torch.float32 if device.type == "mps" else torch.float64  # Apple's GPUs have no float64
            parts = [*self.row_weights, *self.column_weights, self.row_totals, self.column_totals]
            moved = upload(torch.cat(parts).to(dtype), device).split([len(part) for part in parts])
            *weights, self.row_totals, self.column_totals = moved
            self.row_weights, self.column_weights = weights[: len(self.rows)], weights[len(self.rows) :]

    def bands(self, rows_of_tiles: Iterable[Tensor]) -> Iterator[Tensor]:
        """Logits (num_classes, n, W) from top to bottom, n up to 64, of the weighted sums of each row of tiles."""
        next_tops = [top for top, _ in self.rows[1:]] + [self.rows[-1][1]]
        rest: Tensor | None = None  # sums of the rows that the next tiles share
        for sums, (top, _), next_top in zip(rows_of_tiles, self.rows, next_tops, strict=True):
            if rest is not None:
                sums[:, : rest.shape[1]] += rest
            rest = sums[:, next_top - top :].clone()
            for start in range(top, next_top, BAND_ROWS):
                stop = min(start + BAND_ROWS, next_top)
                totals = self.row_totals[start:stop, None] * self.column_totals
                yield sums[:, start - top : stop - top] / totals.to(sums.dtype)


class TileRow(NamedTuple):
    """A row of tiles: pixels (C, h, W) of the network's input, and the number of the row in its cuts."""

    pixels: Tensor
    cuts: Cuts
    number: int


def stream_logits(
    forward: Forward,
    read: Callable[[int, int], Tensor],
    size: tuple[int, int],
    tiling: Tiling,
    pixels: int,
) -> Iterator[Tensor]:
    """Logits of an image from top to bottom, (num_classes, n, W) with n up to 64.

    Args:
        forward: (B, C, h, w) -> (B, num_classes, h, w).
        read: rows [start, stop) of the network's input, (C, stop - start, W); called in a thread, one row ahead.
        size: (H, W) of the network's input.
        pixels: that share a forward pass.

    Memory: W x tile height x classes, and what one batch of tiles needs.
    """
    cuts = Cuts(size, tiling)
    pixels_of = map_ahead(lambda span: read(*span), cuts.rows, ahead=1)
    rows = (TileRow(pixels, cuts, number) for number, pixels in enumerate(pixels_of))
    yield from cuts.bands(_sums(forward, [row], pixels)[0] for row in rows)


def batch_logits(
    forward: Forward,
    images: Sequence[Tensor],
    tilings: Sequence[Tiling],
    pixels: int,
) -> list[Tensor]:
    """Logits (num_classes, H, W) of each of several images (C, H, W), whose tiles of one shape share forward passes."""
    cuts = [Cuts(image.shape[1:], tiling) for image, tiling in zip(images, tilings, strict=True)]
    rows = [
        [TileRow(image[:, slice(*span)], of_image, number) for number, span in enumerate(of_image.rows)]
        for image, of_image in zip(images, cuts, strict=True)
    ]
    sums = iter(_sums(forward, [row for of_image in rows for row in of_image], pixels))
    return [torch.cat(list(of_image.bands(islice(sums, len(of_image.rows)))), dim=1) for of_image in cuts]


def _sums(forward: Forward, rows: Sequence[TileRow], pixels: int) -> list[Tensor]:
    """The sums (num_classes, h, W) of the weighted logits of each row's tiles."""
    by_shape: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for index, row in enumerate(rows):
        for column, (left, right) in enumerate(row.cuts.columns):
            by_shape.setdefault((row.pixels.shape[1], right - left), []).append((index, column))
    sums: dict[int, Tensor] = {}
    for shape, tiles in by_shape.items():
        batch_size = images_per_batch(pixels, shape)
        for start in range(0, len(tiles), batch_size):
            batch = tiles[start : start + batch_size]
            places = [slice(*rows[index].cuts.columns[column]) for index, column in batch]
            logits = forward(
                torch.stack([rows[index].pixels[:, :, place] for (index, _), place in zip(batch, places, strict=True)])
            )
            for tile, (index, column), place in zip(logits, batch, places, strict=True):
                of_row, cuts, number = rows[index]
                if index not in sums:
                    sums[index] = tile.new_zeros(tile.shape[0], *of_row.shape[1:])
                    cuts.to(tile.device)
                weight = cuts.row_weights[number][:, None] * cuts.column_weights[column]
                sums[index][:, :, place] += weight.to(tile.dtype) * tile
    return [sums[index] for index in range(len(rows))]


def _totals(cuts: list[tuple[int, int]], weights: list[Tensor]) -> Tensor:
    """The summed weight of all tiles at each pixel along a side."""
    totals = torch.zeros(cuts[-1][1], dtype=torch.float64)
    for (start, stop), weight in zip(cuts, weights, strict=True):
        totals[start:stop] += weight
    return totals
