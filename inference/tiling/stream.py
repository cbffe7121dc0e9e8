"""Logits of tiles, put together row by row, or slab by slab."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from data_utils.loading.batch_sampler import images_per_batch, pixels_per_batch
from inference.tiling.cuts import Cuts
from inference.tiling.planning import Tiling, plan
from runtime.parallel import map_ahead
from unet.config import UNetConfig

Forward = Callable[[Tensor], Tensor]  # (B, C, ...) -> (B, num_classes, ...)


class TileRow(NamedTuple):
    """A row of tiles: pixels (C, h, W), or (C, d, H, W), of the network's input, and its number in its cuts."""

    pixels: Tensor
    cuts: Cuts
    number: int


def stream_logits(
    forward: Forward,
    read: Callable[[int, int], Tensor],
    size: Sequence[int],
    tiling: Tiling,
    pixels: int,
) -> Iterator[Tensor]:
    """Logits of an image from top to bottom, (num_classes, n, W), or of a volume, (num_classes, n, H, W).

    Args:
        forward: (B, C, h, w) -> (B, num_classes, h, w), of volumes with d before h.
        read: rows [start, stop) of the network's input, (C, stop - start, W), or slices (C, stop - start, H, W); called
            in a thread, of images one row of tiles ahead; two slabs of a volume would be as large as its logits.
        size: (H, W) or (D, H, W) of the network's input.
        pixels: that share a forward pass.

    Memory: W (x H) x the first side of a tile x classes, and what one batch of tiles needs.
    """
    cuts = Cuts(size, tiling)
    pixels_of = map_ahead(lambda span: read(*span), cuts.rows, ahead=1 if len(size) == 2 else 0)
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


def volume_logits(forward: Forward, image: Tensor, config: UNetConfig) -> Tensor:
    """Logits (num_classes, D, H, W) of a volume (C, D, H, W): whole where `plan` says so, else in its tiles."""
    tiling = plan(config, image.shape[1:])
    if tiling is None:
        return forward(image[None])[0]
    pixels = pixels_per_batch(image.device)
    bands = stream_logits(forward, lambda start, stop: image[:, start:stop], image.shape[1:], tiling, pixels)
    return torch.cat(list(bands), dim=1)


def _sums(forward: Forward, rows: Sequence[TileRow], pixels: int) -> list[Tensor]:
    """The sums (num_classes, h, W), or (num_classes, d, H, W), of the weighted logits of each row's tiles."""
    by_shape: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
    for index, row in enumerate(rows):
        for numbers in row.cuts.places:
            sides = (place.stop - place.start for place in row.cuts.place(numbers))
            by_shape.setdefault((row.pixels.shape[1], *sides), []).append((index, numbers))
    sums: dict[int, Tensor] = {}
    for shape, tiles in by_shape.items():
        batch_size = images_per_batch(pixels, shape)
        for start in range(0, len(tiles), batch_size):
            batch = tiles[start : start + batch_size]
            places = [(..., *rows[index].cuts.place(numbers)) for index, numbers in batch]
            logits = forward(
                torch.stack([rows[index].pixels[at] for (index, _), at in zip(batch, places, strict=True)])
            )
            for tile, (index, numbers), at in zip(logits, batch, places, strict=True):
                of_row, cuts, number = rows[index]
                if index not in sums:
                    sums[index] = cuts.first_sums(tile, of_row.shape[1:])
                    cuts.to(tile.device)
                sums[index][at] += cuts.weight(number, numbers).to(tile.dtype) * tile
    return [sums[index] for index in range(len(rows))]
