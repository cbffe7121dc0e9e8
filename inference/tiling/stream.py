"""Logits of tiles, summed by the weight of each pixel into those of an image or a volume."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from types import EllipsisType
from typing import NamedTuple

import torch
from torch import Tensor

from data_utils.loading.batch_sampler import images_per_batch
from inference.tiling.planning import Tiling, round_up
from runtime.device import upload, widest_float
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


class Axis:
    """The tiles along an axis: the span of each, the weights of its pixels, and the sum of weights over all tiles."""

    def __init__(self, length: int, tile: int, overlap: int, grid: int, exact: bool) -> None:
        self.spans = _spans(length, tile, overlap, grid, exact)
        self.weights = _weights(self.spans, overlap, exact)
        self.totals = torch.zeros(length, dtype=torch.float64)
        for (start, stop), weight in zip(self.spans, self.weights, strict=True):
            self.totals[start:stop] += weight


class Tile(NamedTuple):
    """A tile of one of several images.

    Args:
        image: the index of its image.
        numbers: its number along each axis of the image.
        window: the index of its pixels in the image, or in the row of tiles that is in memory.
        shape: its sides.
    """

    image: int
    numbers: tuple[int, ...]
    window: tuple[EllipsisType | slice, ...]
    shape: tuple[int, ...]


class Cuts:
    """The positions and pixel weights of the tiles of a network's input of `size`, (H, W) or (D, H, W).

    Tiles with the same span along the first axis are called a row, in a volume too.
    """

    def __init__(self, size: Sequence[int], tiling: Tiling) -> None:
        self.axes: list[Axis] = []
        for length, tile, overlap, grid in zip(size, tiling.size, tiling.overlap, tiling.grid, strict=True):
            self.axes.append(Axis(length, tile, overlap, grid, tiling.exact))
        self.rows = self.axes[0].spans

    def row_tiles(self, row: int, image: int = 0, top: int = 0) -> Iterator[Tile]:
        """The tiles of a row of an image, whose pixels in memory begin at `top`."""
        for others in product(*(range(len(axis.spans)) for axis in self.axes[1:])):
            numbers = (row, *others)
            spans = [axis.spans[number] for axis, number in zip(self.axes, numbers, strict=True)]
            start, stop = spans[0]
            spans[0] = start - top, stop - top
            window: list[EllipsisType | slice] = [...]
            window += [slice(*span) for span in spans]
            yield Tile(image, numbers, tuple(window), tuple(stop - start for start, stop in spans))

    def add(self, sums: Tensor, tile: Tile, logits: Tensor) -> None:
        """Add the logits of a tile to the sums of its image or row, by the weight of each pixel."""
        self._move(logits.device)
        # the weight of a pixel is the product of its weights along each axis, and so is their sum over all tiles
        weight = _outer([axis.weights[number] for axis, number in zip(self.axes, tile.numbers, strict=True)])
        sums[tile.window] += weight.to(logits.dtype) * logits

    def totals(self, rows: slice = slice(None)) -> Tensor:
        """The sums of the weights of all tiles, for some rows or slices."""
        first, *others = [axis.totals for axis in self.axes]
        return _outer([first[rows], *others])

    def _move(self, device: torch.device) -> None:
        """Move the weights, in one upload, to the device of the logits, unless they are there already."""
        if self.axes[0].totals.device == device:
            return
        vectors: list[Tensor] = []
        for axis in self.axes:
            vectors += [*axis.weights, axis.totals]
        lengths = [len(vector) for vector in vectors]
        uploaded = iter(upload(torch.cat(vectors).to(widest_float(device)), device).split(lengths))
        for axis in self.axes:
            axis.weights = [next(uploaded) for _ in axis.weights]
            axis.totals = next(uploaded)


def stream_logits(
    forward: Forward,
    read: Callable[[int, int], Tensor],
    size: Sequence[int],
    tiling: Tiling,
    pixels: int,
) -> Iterator[Tensor]:
    """Logits of an image from top to bottom, (num_classes, n, W), or of a volume, (num_classes, n, H, W).

    Args:
        forward: (B, C, h, w) -> (B, num_classes, h, w); for volumes, d stands before h.
        read: returns rows [start, stop) of the network's input, (C, stop - start, W), or slices
            (C, stop - start, H, W). It is called in a thread, for images one row of tiles ahead; two rows of a volume
            would be as large as its logits.
        size: (H, W) or (D, H, W) of the network's input.
        pixels: how many pixels share a forward pass.

    Memory: W (x H) x the first side of a tile x classes, and the memory of one batch of tiles.
    """
    cuts = Cuts(size, tiling)
    next_tops = [top for top, _ in cuts.rows[1:]]
    next_tops.append(size[0])
    inputs = map_ahead(lambda span: read(*span), cuts.rows, ahead=1 if len(size) == 2 else 0)
    shared: Tensor | None = None  # sums of the rows that the next tiles share
    for number, row_pixels in enumerate(inputs):
        top = cuts.rows[number][0]
        next_top = next_tops[number]
        sums = _row_sums(forward, row_pixels, cuts, number, pixels, shared)
        length = strip_length(len(sums), sums.shape[1:])
        for start in range(top, next_top, length):
            stop = min(start + length, next_top)
            yield sums[:, start - top : stop - top] / cuts.totals(slice(start, stop)).to(sums.dtype)
        shared = sums[:, next_top - top :].clone()
        del sums  # they are freed before the next row's are made


def _row_sums(
    forward: Forward, row_pixels: Tensor, cuts: Cuts, number: int, pixels: int, shared: Tensor | None
) -> Tensor:
    """The sums of the weighted logits of the tiles of a row; `shared` are those that are left from the row before."""
    tiles = list(cuts.row_tiles(number, top=cuts.rows[number][0]))
    sums: Tensor | None = None
    for tile, logits in _tile_logits(forward, [row_pixels], tiles, pixels):
        if sums is None:
            sums = logits.new_zeros(len(logits), *row_pixels.shape[1:])
            if shared is not None:
                sums[:, : shared.shape[1]] = shared
        cuts.add(sums, tile, logits)
    assert sums is not None  # a row has tiles
    return sums


def batch_logits(
    forward: Forward,
    images: Sequence[Tensor],
    tilings: Sequence[Tiling],
    pixels: int,
) -> list[Tensor]:
    """Logits (num_classes, H, W) of each image (C, H, W); their tiles of one shape share forward passes."""
    all_cuts = [Cuts(image.shape[1:], tiling) for image, tiling in zip(images, tilings, strict=True)]
    tiles: list[Tile] = []
    for image, cuts in enumerate(all_cuts):
        for row in range(len(cuts.rows)):
            tiles += cuts.row_tiles(row, image)
    sums: dict[int, Tensor] = {}
    for tile, logits in _tile_logits(forward, images, tiles, pixels):
        if tile.image not in sums:
            sums[tile.image] = logits.new_zeros(len(logits), *images[tile.image].shape[1:])
        all_cuts[tile.image].add(sums[tile.image], tile, logits)
    return [sums[image].div_(cuts.totals().to(sums[image].dtype)) for image, cuts in enumerate(all_cuts)]


def _tile_logits(
    forward: Forward, images: Sequence[Tensor], tiles: Sequence[Tile], pixels: int
) -> Iterator[tuple[Tile, Tensor]]:
    """Each tile of the images with its logits (num_classes, *shape)."""
    tiles_by_shape: dict[tuple[int, ...], list[Tile]] = {}
    for tile in tiles:
        tiles_by_shape.setdefault(tile.shape, []).append(tile)
    for shape, same_shape in tiles_by_shape.items():
        batch_size = images_per_batch(pixels, shape)
        for start in range(0, len(same_shape), batch_size):
            batch = same_shape[start : start + batch_size]
            logits = forward(torch.stack([images[tile.image][tile.window] for tile in batch]))
            yield from zip(batch, logits, strict=True)


def _outer(factors: Sequence[Tensor]) -> Tensor:
    """The product of vectors, each along an axis of its own."""
    result = factors[0]
    for factor in factors[1:]:
        result = result[..., None] * factor
    return result


def _spans(length: int, tile: int, overlap: int, grid: int, exact: bool) -> list[Span]:
    """The tiles along a side: all start on the grid, and the last one ends where the image ends."""
    if length <= tile:
        return [(0, length)]
    starts = list(range(0, length - overlap, tile - overlap))
    if not exact:  # norms over the whole tile need a last tile as large as the others
        starts[-1] = round_up(length - tile, grid)
    return [(start, min(start + tile, length)) for start in starts]


def _weights(spans: Sequence[Span], overlap: int, exact: bool) -> list[Tensor]:
    """The weight of each pixel of each tile along a side: 1 or 0 if tiles are exact, else Gaussian."""
    weights = []
    half = overlap // 2
    for index, (start, stop) in enumerate(spans):
        length = stop - start
        if exact:
            weight = torch.ones(length, dtype=torch.float64)
            if index:
                weight[:half] = 0
            if index + 1 < len(spans):
                weight[length - half :] = 0
        else:
            position = (torch.arange(length, dtype=torch.float64) + 0.5) / length - 0.5
            weight = torch.exp(-0.5 * (8 * position) ** 2)  # sigma is an eighth of a tile
        weights.append(weight)
    return weights
