"""The size and the overlap of tiles."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from inference.tiling.receptive_field import reach
from runtime.errors import SettingsError
from unet.config import UNetConfig

# bytes of activations up to which an image or a volume is computed whole
WHOLE_MEMORY = 2**32
WHOLE_VOLUME_MEMORY = 2**31
# bytes of the activations of a tile, or of the pixels and of the logits of a row of them
TILE_MEMORY = 5 * 2**25  # of an image's; a network so narrow computes larger tiles than TILE_SIDE_IN_REACHES
LARGE_TILE_MEMORY = 3 * 2**28  # at most; a network so wide computes smaller tiles

TILE_SIDE_IN_REACHES = 10  # of an image's tile; a fifth of such a tile is overlap
TILE_VOXELS = 2**21  # of a blended tile of a volume, 128 x 128 x 128: at least the size of training crops


class Tiling(NamedTuple):
    """Tiles of `size` that share `overlap` pixels with their neighbors; both are multiples of `grid`.

    Each field holds a number for each axis.
    """

    size: tuple[int, ...]
    overlap: tuple[int, ...]
    grid: tuple[int, ...]
    exact: bool

    def __str__(self) -> str:
        size = " x ".join(map(str, self.size))
        overlap = " x ".join(map(str, self.overlap))
        if len(set(self.overlap)) == 1:
            overlap = str(self.overlap[0])
        result = "blended, not exactly the whole image's result"
        if self.exact:
            result = "equal to the whole image's result"
        return f"tiles of {size} overlapping by {overlap} ({result})"


def choose_tiling(
    config: UNetConfig,
    size: Sequence[int],
    tile_size: int | None = None,
    overlap: int | None = None,
    *,
    adds_reach: bool = False,
) -> Tiling | None:
    """The tiling of a network input of `size`, (H, W) or (D, H, W); None to compute it whole.

    Args:
        tile_size: side of a tile; None computes inputs whole that fit into 4 GB, or into 0.8 GB if exact tiles cost
            little, and chooses tiles for larger ones. Volumes are computed whole up to 2 GB.
        overlap: pixels that neighbors share; None takes the overlap of exact tiles, or half a tile if none are exact.
        adds_reach: whether `tile_size` is the side of the part taken from a tile, without its margin, so that tiles are
            exact where possible, as objects need them.

    Tile size and overlap are rounded up to the pooling grid. Raises SettingsError if the overlap is too large.
    """
    largest = WHOLE_MEMORY if config.dims == 2 else WHOLE_VOLUME_MEMORY
    memory = math.prod(size) * _pixel_bytes(config)
    if tile_size is None and config.encoder is not None and memory <= largest:
        return None  # measuring an encoder's reach takes seconds, and it is always large
    margin = reach(config)
    if tile_size is not None:
        if adds_reach and overlap is None and margin is not None:
            tile_size = round_up(tile_size, max(config.divisors)) + 2 * max(margin)
        sides: Sequence[int] = (tile_size,) * config.dims
    elif config.dims == 2:
        half_overlap = margin[0] if margin else 8 * config.divisors[0]
        side = TILE_SIDE_IN_REACHES * half_overlap
        # tiles of a narrow network are as good as the whole image and, in a CPU's caches, faster
        if margin is not None and side**2 * _pixel_bytes(config) <= LARGE_TILE_MEMORY:
            largest = LARGE_TILE_MEMORY
        sides = _image_tile(config, size, side, 4 * half_overlap)
    else:
        sides = _volume_tile(config, size, None if overlap is not None else margin)
    tile = tuple(map(round_up, sides, config.divisors))
    cut_axes = [axis for axis, length in enumerate(size) if length > tile[axis]]
    if not cut_axes or (tile_size is None and memory <= largest):
        return None
    shared = _shared_pixels(config, tile, cut_axes, margin, overlap)
    for axis in cut_axes:
        if shared[axis] >= tile[axis]:
            raise SettingsError(
                f"overlap {shared[axis]} must be less than the tile size {tile[axis]}"
                " (both rounded up to the pooling grid)"
            )
    exact = margin is not None and all(shared[axis] >= 2 * margin[axis] for axis in cut_axes)
    return Tiling(tile, shared, config.divisors, exact)


def _image_tile(config: UNetConfig, size: Sequence[int], side: int, smallest: int) -> tuple[int, int]:
    """The height and width of tiles that suit the memory.

    Args:
        side: the side from which on overlap is a small part of a tile.
        smallest: the side of which half is overlap.
    """
    height, width = size
    pixel_bytes = _pixel_bytes(config)
    pixels = max(TILE_MEMORY // pixel_bytes, min(side**2, LARGE_TILE_MEMORY // pixel_bytes))
    row_height = TILE_MEMORY // (4 * max(config.num_classes, config.in_channels) * width)
    tile_height = min(max(smallest, math.isqrt(pixels)), max(smallest, row_height))
    tile_height = min(tile_height, round_up(height, config.divisors[0]))
    return tile_height, max(smallest, pixels // tile_height)


def _volume_tile(config: UNetConfig, size: Sequence[int], margin: Sequence[int] | None) -> Sequence[int]:
    """Exact tiles if they compute no voxel more often than blended tiles do, else blended tiles."""
    slice_bytes = 4 * config.num_classes * size[1] * size[2]
    deepest = LARGE_TILE_MEMORY // slice_bytes
    limits = [round_up(length, step) for length, step in zip(size, config.divisors, strict=True)]
    if margin:
        # half of the smallest exact tile is overlap, as in blended tiles; axes that are not cut are whole
        exact_tile = []
        for pixels, limit, step in zip(margin, limits, config.divisors, strict=True):
            exact_tile.append(min(max(4 * pixels, step), limit))
        if math.prod(exact_tile) * _pixel_bytes(config) <= WHOLE_VOLUME_MEMORY and exact_tile[0] <= deepest:
            return exact_tile
    # a blended tile has the same number of steps of the grid along each axis: axes with distant planes are pooled
    # less often, so that it is about as long, in mm, along each of them
    step = config.divisors[0]
    limits[0] = min(limits[0], max(2 * step, deepest // step * step))
    voxels = min(TILE_VOXELS, WHOLE_VOLUME_MEMORY // _pixel_bytes(config))

    def tile_of(cells: int) -> list[int]:
        """The sides of a tile of so many steps of the pooling grid along each axis."""
        return [min(cells * step, limit) for step, limit in zip(config.divisors, limits, strict=True)]

    cells = 2
    while tile_of(cells) != limits and math.prod(tile_of(cells + 1)) <= voxels:
        cells += 1
    return tile_of(cells)


def _shared_pixels(
    config: UNetConfig, tile: Sequence[int], cut_axes: Sequence[int], margin: Sequence[int] | None, overlap: int | None
) -> tuple[int, ...]:
    """The pixels that tiles share along each axis: `overlap`, or those of exact tiles, or half a tile."""
    sides = tile
    steps = config.divisors
    if config.dims == 2:
        sides = (min(tile),) * 2
        steps = (2 * steps[0],) * 2  # so that half of it lies on the grid
    if overlap is not None:
        return tuple(round_up(overlap, step) for step in steps)
    if margin is not None and all(2 * margin[axis] < tile[axis] for axis in cut_axes):
        return tuple(2 * pixels for pixels in margin)
    return tuple(side // 2 // step * step for side, step in zip(sides, steps, strict=True))


def _pixel_bytes(config: UNetConfig) -> int:
    return 4 * 8 * config.base_channels  # measured: float32, the last concatenation and its convolution


def round_up(value: int, step: int) -> int:
    """The next multiple of `step`."""
    return math.ceil(value / step) * step
