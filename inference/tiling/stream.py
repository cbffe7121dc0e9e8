"""Logits of tiles, put together row by row of tiles."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import EllipsisType
from typing import NamedTuple

import torch
from torch import Tensor

from data_utils.loading.batch_sampler import images_per_batch
from inference.tiling.cuts import Cuts
from inference.tiling.planning import Tiling
from runtime.parallel import map_ahead

Forward = Callable[[Tensor], Tensor]  # (B, C, ...) -> (B, num_classes, ...)


class TileRow(NamedTuple):
    """A row of tiles: pixels (C, h, W), or (C, d, H, W), of the network's input, and its number in `Cuts`."""

    pixels: Tensor
    cuts: Cuts
    number: int


class Tile(NamedTuple):
    """A tile of one of several rows.

    Args:
        row: the index of its row.
        indices: its indices along the other axes.
        window: the index of its pixels or logits in the arrays of its row.
    """

    row: int
    indices: tuple[int, ...]
    window: tuple[EllipsisType | slice, ...]


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
    image_cuts: list[Cuts] = []
    rows: list[TileRow] = []
    for image, tiling in zip(images, tilings, strict=True):
        cuts = Cuts(image.shape[1:], tiling)
        image_cuts.append(cuts)
        for number, (start, stop) in enumerate(cuts.rows):
            rows.append(TileRow(image[:, start:stop], cuts, number))
    sums = iter(_sums(forward, rows, pixels))
    logits = []
    for cuts in image_cuts:
        strips = cuts.strips(islice(sums, len(cuts.rows)))
        logits.append(torch.cat(list(strips), dim=1))
    return logits


def _sums(forward: Forward, rows: Sequence[TileRow], pixels: int) -> list[Tensor]:
    """The sums (num_classes, h, W), or (num_classes, d, H, W), of the weighted logits of each row's tiles."""
    tiles_by_shape: dict[tuple[int, ...], list[Tile]] = {}
    for index, row in enumerate(rows):
        for indices in row.cuts.tile_indices:
            spans = row.cuts.spans_within_row(indices)
            sides = [stop - start for start, stop in spans]
            slices = [slice(start, stop) for start, stop in spans]
            tile = Tile(index, indices, (..., *slices))
            tiles_by_shape.setdefault((row.pixels.shape[1], *sides), []).append(tile)
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
                    row.cuts.to(tile_logits.device)
                weight = row.cuts.weight(row.number, tile.indices)
                sums[tile.row][tile.window] += weight.to(tile_logits.dtype) * tile_logits
    return [sums[index] for index in range(len(rows))]
