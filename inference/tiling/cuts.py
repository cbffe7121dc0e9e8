"""The positions of tiles along each axis, and the weight of each of their pixels."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from inference.tiling.planning import Tiling, round_up
from runtime.device import upload, widest_float

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
        # the tiles of a row have an index along each of the other axes
        indices_along_axes = [range(len(axis.spans)) for axis in self.axes[1:]]
        self.tile_indices = list(product(*indices_along_axes))

    def spans_within_row(self, indices: Sequence[int]) -> list[Span]:
        """The spans of the tile with these `indices` within its row, along each of the other axes."""
        return [axis.spans[index] for axis, index in zip(self.axes[1:], indices, strict=True)]

    def weight(self, row: int, indices: Sequence[int]) -> Tensor:
        """The weights of the pixels of a tile: the product of its weights along each axis."""
        all_indices = (row, *indices)
        return _outer([axis.weights[index] for axis, index in zip(self.axes, all_indices, strict=True)])

    def to(self, device: torch.device) -> None:
        """Move the weights, in one upload, to the device of the logits, unless they are there already."""
        if self.axes[0].totals.device == device:
            return
        vectors: list[Tensor] = []
        for axis in self.axes:
            vectors += axis.weights
            vectors.append(axis.totals)
        lengths = [len(vector) for vector in vectors]
        dtype = widest_float(device)
        uploaded = iter(upload(torch.cat(vectors).to(dtype), device).split(lengths))
        for axis in self.axes:
            axis.weights = [next(uploaded) for _ in axis.weights]
            axis.totals = next(uploaded)

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
                totals_along_axes = [axis.totals for axis in self.axes]
                totals_along_axes[0] = totals_along_axes[0][start:stop]
                totals = _outer(totals_along_axes)
                yield sums[:, start - top : stop - top] / totals.to(sums.dtype)
            self.shared_sums = sums[:, next_top - top :].clone()
            del sums  # they are freed before the next row's are made

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
