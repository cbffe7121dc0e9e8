"""The size and the overlap of tiles."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from inference.tiling.receptive_field import reach
from runtime.errors import SettingsError
from unet.config import UNetConfig

WHOLE_MEMORY = 2**32  # bytes of activations up to which an image is computed whole
TILE_MEMORY = 2**27  # bytes of activations of a tile
LARGE_TILE_MEMORY = 3 * 2**28  # bytes, for a wide network: most of a smaller tile would be overlap
TILE_SIDE_IN_REACHES = 10  # a tile's side, in reaches: a fifth of it is overlap
EFFICIENT_OF_OBJECTS = 7  # a tile's side for objects, in reaches: finding them takes further memory
STRIP_MEMORY = 2**28  # bytes of logits of a row of tiles
INPUT_MEMORY = 5 * 2**25  # bytes of pixels of a row of tiles, for images of more channels than pictures
PICTURE_CHANNELS = 4

WHOLE_VOLUME_MEMORY = 2**31  # bytes of activations up to which a volume, or an exact tile of it, is computed
TILE_VOXELS = 2**21  # voxels of a blended tile, 128 x 128 x 128: at least the size of training crops
ROW_MEMORY = 3 * 2**28  # bytes of logits of a row of a volume's tiles


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


def one_tile(size: Sequence[int]) -> Tiling:
    """A tiling of a network's input of `size`, (H, W) or (D, H, W), that is one tile."""
    return Tiling(tuple(size), (0,) * len(size), (1,) * len(size), exact=True)


def choose_tiling(
    config: UNetConfig,
    size: Sequence[int],
    tile_size: int | None = None,
    overlap: int | None = None,
    *,
    adds_reach: bool = False,
    low_rows: bool = False,
) -> Tiling | None:
    """The tiling of a network input of `size`, (H, W) or (D, H, W); None to compute it whole.

    Args:
        tile_size: side of a tile; None computes inputs whole that fit into 4 GB, or into 0.8 GB if exact tiles cost
            little, and chooses tiles for larger ones. Volumes are computed whole up to 2 GB.
        overlap: pixels that neighbors share; None takes the overlap of exact tiles, or half a tile if none are exact.
        adds_reach: whether `tile_size` is the side of the part taken from a tile, without its margin, so that tiles are
            exact where possible, as objects need them.
        low_rows: whether rows of tiles of many channels may be lower, so that their pixels take less memory.

    Tile size and overlap are rounded up to the pooling grid. Raises SettingsError if the overlap is too large.
    """
    if adds_reach and tile_size is not None and overlap is None:
        tile_size = _side_with_reach(config, tile_size)
    if config.dims == 3:
        return _plan_volume(config, size, tile_size, overlap)
    efficient_reaches = EFFICIENT_OF_OBJECTS if adds_reach else TILE_SIDE_IN_REACHES
    return _plan_image(config, size, tile_size, overlap, efficient_reaches, low_rows=low_rows)


def _side_with_reach(config: UNetConfig, side: int) -> int:
    """The side of an exact tile from which `side` pixels are taken; `side` itself if no tile is exact."""
    reaches = reach(config)
    if reaches is None:
        return side
    return round_up(side, max(config.divisors)) + 2 * max(reaches)


def _plan_image(
    config: UNetConfig,
    size: Sequence[int],
    tile_size: int | None,
    overlap: int | None,
    efficient_reaches: int,
    *,
    low_rows: bool,
) -> Tiling | None:
    """Tiles that are exact where possible, of a size that suits the memory.

    Args:
        efficient_reaches: the side, in reaches, from which on overlap is a small part of a tile.
    """
    grid = config.divisors[0]
    pixel_bytes = _pixel_bytes(config)
    height, width = size
    if config.encoder is not None and tile_size is None and height * width * pixel_bytes <= WHOLE_MEMORY:
        return None  # measuring an encoder's reach takes seconds, and it is always large
    reaches = reach(config)
    reach_pixels = reaches[0] if reaches else None
    if tile_size is None:
        half_overlap = reach_pixels or 8 * grid
        efficient_side = efficient_reaches * half_overlap
        # tiles of a narrow network are as good as the whole image and, in a CPU's caches, faster
        are_cheap = reach_pixels is not None and efficient_side**2 * pixel_bytes <= LARGE_TILE_MEMORY
        whole_memory = LARGE_TILE_MEMORY if are_cheap else WHOLE_MEMORY
        if height * width * pixel_bytes <= whole_memory:
            return None
        smallest_side = 4 * half_overlap  # half of it is overlap
        tile_height, tile_width = _tile_sides(config, size, efficient_side, smallest_side, low_rows=low_rows)
    else:
        tile_height = tile_width = tile_size
    tile_height = round_up(tile_height, grid)
    tile_width = round_up(tile_width, grid)
    if height <= tile_height and width <= tile_width:
        return None
    shorter_side = min(tile_height, tile_width)
    if overlap is None:
        overlap = shorter_side // 2 // (2 * grid) * 2 * grid
        if reach_pixels is not None and 2 * reach_pixels < shorter_side:
            overlap = 2 * reach_pixels
    overlap = round_up(overlap, 2 * grid)
    _check_overlap(overlap, shorter_side)
    is_exact = reach_pixels is not None and overlap >= 2 * reach_pixels
    return Tiling((tile_height, tile_width), (overlap, overlap), (grid, grid), is_exact)


def _tile_sides(
    config: UNetConfig, size: Sequence[int], efficient_side: int, smallest_side: int, *, low_rows: bool
) -> tuple[int, int]:
    """Height and width of tiles of an image of `size` that suit the memory, before they are rounded to the grid."""
    height, width = size
    pixel_bytes = _pixel_bytes(config)
    pixels = max(TILE_MEMORY // pixel_bytes, min(efficient_side**2, LARGE_TILE_MEMORY // pixel_bytes))
    largest_height = max(smallest_side, STRIP_MEMORY // (4 * config.num_classes * width))
    if low_rows and config.in_channels > PICTURE_CHANNELS:
        input_height = INPUT_MEMORY // (4 * config.in_channels * width)
        largest_height = min(largest_height, max(smallest_side, input_height))
    tile_height = min(max(smallest_side, math.isqrt(pixels)), largest_height, round_up(height, config.divisors[0]))
    return tile_height, max(smallest_side, pixels // tile_height)


def _plan_volume(config: UNetConfig, size: Sequence[int], tile_size: int | None, overlap: int | None) -> Tiling | None:
    """Exact tiles if they compute no voxel more often than blended tiles do, else blended tiles."""
    grid = config.divisors
    margin = reach(config)
    voxel_bytes = _pixel_bytes(config)
    if tile_size is None:
        if math.prod(size) * voxel_bytes <= WHOLE_VOLUME_MEMORY:
            return None
        tile = None
        if margin and overlap is None:
            tile = _exact_tile(config, size, margin)
        if tile is None:
            voxels = min(TILE_VOXELS, WHOLE_VOLUME_MEMORY // voxel_bytes)
            tile = _blended_tile(config, size, voxels)
    else:
        tile = tuple(round_up(tile_size, step) for step in grid)
    cut_axes = [axis for axis in range(3) if size[axis] > tile[axis]]
    if not cut_axes:
        return None
    if overlap is not None:
        shared = tuple(round_up(overlap, step) for step in grid)
    elif margin and all(2 * margin[axis] < tile[axis] for axis in cut_axes):
        shared = tuple(2 * pixels for pixels in margin)
    else:
        shared = tuple(side // 2 // step * step for side, step in zip(tile, grid, strict=True))
    for axis in cut_axes:
        _check_overlap(shared[axis], tile[axis])
    exact = margin is not None and all(shared[axis] >= 2 * margin[axis] for axis in cut_axes)
    return Tiling(tile, shared, grid, exact)


def _exact_tile(config: UNetConfig, size: Sequence[int], margin: tuple[int, ...]) -> tuple[int, ...] | None:
    """The smallest exact tile whose overlap is half of it along each axis that is cut, as in blended tiles.

    The other axes are whole. Along an axis without a reach, a tile is one step of the pooling grid. Returns None if the
    tile is too large.
    """
    tile = []
    for pixels, length, step in zip(margin, size, config.divisors, strict=True):
        tile.append(min(max(4 * pixels, step), round_up(length, step)))
    fits = math.prod(tile) * _pixel_bytes(config) <= WHOLE_VOLUME_MEMORY
    if fits and tile[0] <= _deepest(config, size):
        return tuple(tile)
    return None


def _blended_tile(config: UNetConfig, size: Sequence[int], voxels: int) -> tuple[int, ...]:
    """The largest tile of up to `voxels`; its sides are the same number of steps of the pooling grid, 2 at least.

    Axes with distant planes are pooled less often, so the tile is about as long, in mm, along each axis.
    """
    grid = config.divisors
    limits = [round_up(length, step) for length, step in zip(size, grid, strict=True)]
    limits[0] = min(limits[0], max(2 * grid[0], _deepest(config, size) // grid[0] * grid[0]))

    def tile(cells: int) -> tuple[int, ...]:
        return tuple(min(cells * step, limit) for step, limit in zip(grid, limits, strict=True))

    cells = 2
    while math.prod(tile(cells + 1)) <= voxels and tile(cells) != tuple(limits):
        cells += 1
    return tile(cells)


def _deepest(config: UNetConfig, size: Sequence[int]) -> int:
    """The largest number of slices of logits in a row of tiles."""
    return ROW_MEMORY // (4 * config.num_classes * size[1] * size[2])


def _pixel_bytes(config: UNetConfig) -> int:
    return 4 * 8 * config.base_channels  # measured: float32, the last concatenation and its convolution


def _check_overlap(overlap: int, side: int) -> None:
    if overlap >= side:
        raise SettingsError(
            f"overlap {overlap} must be less than the tile size {side} (both rounded up to the pooling grid)"
        )


def round_up(value: int, step: int) -> int:
    """The next multiple of `step`."""
    return math.ceil(value / step) * step
