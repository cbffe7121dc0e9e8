"""Logits of tiles, summed by the weight of each pixel into those of an image or a volume."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, product
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


class TileRow(NamedTuple):
    """A row of tiles: pixels (C, h, W), or (C, d, H, W), of the network's input, and its number in `Cuts`."""

    pixels: Tensor
    cuts: "Cuts"
    number: int


class Tile(NamedTuple):
    """A tile of one of several rows.

    Args:
        row: the index of its row.
        numbers: its number along each axis of its image.
        window: the index of its pixels or logits in the arrays of its row.
    """

    row: int
    numbers: tuple[int, ...]
    window: tuple[EllipsisType | slice, ...]


class Cuts:
    """The positions and pixel weights of the tiles of a network's input of `size`, (H, W) or (D, H, W).

    Tiles with the same span along the first axis are called a row, in a volume too.
    """

    def __init__(self, size: Sequence[int], tiling: Tiling) -> None:
        self.axes: list[Axis] = []
        for length, tile, overlap, grid in zip(size, tiling.size, tiling.overlap, tiling.grid, strict=True):
            self.axes.append(Axis(length, tile, overlap, grid, tiling.exact))
        self.rows = self.axes[0].spans
        self.shared_sums: Tensor | None = None  # sums of the rows that the next tiles share

    def tiles(self, number: int, row: int) -> Iterator[tuple[Tile, tuple[int, ...]]]:
        """Each tile of a row, given its number, with its sides; `row` is the index that the tiles refer to."""
        numbers_along_axes = [range(len(axis.spans)) for axis in self.axes[1:]]
        for others in product(*numbers_along_axes):
            spans = [axis.spans[other] for axis, other in zip(self.axes[1:], others, strict=True)]
            window: list[EllipsisType | slice] = [...]
            window += [slice(start, stop) for start, stop in spans]
            sides = [stop - start for start, stop in (self.rows[number], *spans)]
            yield Tile(row, (number, *others), tuple(window)), tuple(sides)

    def add(self, sums: Tensor, tile: Tile, logits: Tensor) -> None:
        """Add the logits of a tile to the sums of its row, by the weight of each pixel."""
        self._move(logits.device)
        weight = _outer([axis.weights[number] for axis, number in zip(self.axes, tile.numbers, strict=True)])
        sums[tile.window] += weight.to(logits.dtype) * logits

    def first_sums(self, tile: Tensor, shape: Sequence[int]) -> Tensor:
        """Sums (num_classes, *shape), to which the weighted logits of a row's tiles are added.

        In a volume they begin with the sums that are left from the row before, whose memory is reused.

        Args:
            tile: the logits of the row's first tile.
        """
        sums = tile.new_zeros(len(tile), *shape)
        if self.shared_sums is not None and len(shape) == 3:
            sums[:, : self.shared_sums.shape[1]] = self.shared_sums
            self.shared_sums = None
        return sums

    def strips(self, tile_rows: Iterable[Tensor]) -> Iterator[Tensor]:
        """Logits (num_classes, n, ...) from the first row or slice to the last, from each row's weighted sums."""
        next_tops = [top for top, _ in self.rows[1:]]
        next_tops.append(self.rows[-1][1])
        row_sums = iter(tile_rows)
        for (top, _), next_top in zip(self.rows, next_tops, strict=True):
            sums = next(row_sums)
            if self.shared_sums is not None:
                sums[:, : self.shared_sums.shape[1]] += self.shared_sums
            length = strip_length(len(sums), sums.shape[1:])
            for start in range(top, next_top, length):
                stop = min(start + length, next_top)
                # a tile's weight is the product of its weights along each axis, and so is their sum over all tiles
                first, *others = [axis.totals for axis in self.axes]
                totals = _outer([first[start:stop], *others])
                yield sums[:, start - top : stop - top] / totals.to(sums.dtype)
            self.shared_sums = sums[:, next_top - top :].clone()
            del sums  # they are freed before the next row's are made

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
    rows_ahead = 1 if len(size) == 2 else 0
    inputs = map_ahead(lambda span: read(*span), cuts.rows, ahead=rows_ahead)
    rows = (TileRow(row_pixels, cuts, number) for number, row_pixels in enumerate(inputs))
    yield from cuts.strips(_sums(forward, [row], pixels)[0] for row in rows)


def batch_logits(
    forward: Forward,
    images: Sequence[Tensor],
    tilings: Sequence[Tiling],
    pixels: int,
) -> list[Tensor]:
    """Logits (num_classes, H, W) of each image (C, H, W); their tiles of one shape share forward passes."""
    all_cuts = [Cuts(image.shape[1:], tiling) for image, tiling in zip(images, tilings, strict=True)]
    rows: list[TileRow] = []
    for image, cuts in zip(images, all_cuts, strict=True):
        for number, (start, stop) in enumerate(cuts.rows):
            rows.append(TileRow(image[:, start:stop], cuts, number))
    sums = iter(_sums(forward, rows, pixels))
    logits = []
    for cuts in all_cuts:
        strips = cuts.strips(islice(sums, len(cuts.rows)))
        logits.append(torch.cat(list(strips), dim=1))
    return logits


def _sums(forward: Forward, rows: Sequence[TileRow], pixels: int) -> list[Tensor]:
    """The sums (num_classes, h, W), or (num_classes, d, H, W), of the weighted logits of each row's tiles."""
    tiles_by_shape: dict[tuple[int, ...], list[Tile]] = {}
    for index, row in enumerate(rows):
        for tile, shape in row.cuts.tiles(row.number, index):
            tiles_by_shape.setdefault(shape, []).append(tile)
    sums: dict[int, Tensor] = {}
    for shape, tiles in tiles_by_shape.items():
        batch_size = images_per_batch(pixels, shape)
        for start in range(0, len(tiles), batch_size):
            batch = tiles[start : start + batch_size]
            logits = forward(torch.stack([rows[tile.row].pixels[tile.window] for tile in batch]))
            for tile, tile_logits in zip(batch, logits, strict=True):
                row = rows[tile.row]
                if tile.row not in sums:
                    sums[tile.row] = row.cuts.first_sums(tile_logits, row.pixels.shape[1:])
                row.cuts.add(sums[tile.row], tile, tile_logits)
    return [sums[index] for index in range(len(rows))]


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
