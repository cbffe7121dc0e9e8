"""The size and the overlap of tiles."""

import math
from typing import NamedTuple

from data_utils.image_io.resize import Size
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
    size: Size,
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
    pixel_bytes = 4 * 8 * config.base_channels  # measured: float32, the last concatenation and its convolution
    row_bytes = 4 * max(config.num_classes, config.in_channels) * math.prod(size[1:])  # or of a slice
    if tile_size is None and config.encoder is not None and math.prod(size) * pixel_bytes <= WHOLE_MEMORY:
        return None  # measuring an encoder's reach takes seconds, and it is always large
    steps = config.divisors
    margin = reach(config)
    if tile_size is not None:
        if adds_reach and overlap is None and margin is not None:
            tile_size = round_up(tile_size, max(steps)) + 2 * max(margin)
        tile = tuple(round_up(tile_size, step) for step in steps)
    elif config.dims == 2:
        tile = _image_tile(size, steps, margin, pixel_bytes, row_bytes)
    else:
        tile = _volume_tile(size, steps, margin if overlap is None else None, pixel_bytes, row_bytes)
    cut_axes = [axis for axis, length in enumerate(size) if length > tile[axis]]
    if not cut_axes:
        return None
    if overlap is not None:
        shared = tuple(round_up(overlap, step) for step in steps)
    elif margin is not None and all(2 * margin[axis] < tile[axis] for axis in cut_axes):
        shared = tuple(2 * side for side in margin)
    else:  # half a tile; of a long tile of an image, half of its shorter side
        sides = tile if config.dims == 3 else (min(tile),) * 2
        shared = tuple(side // 2 // step * step for side, step in zip(sides, steps, strict=True))
    for axis in cut_axes:
        if shared[axis] >= tile[axis]:
            raise SettingsError(
                f"--overlap {shared[axis]} must be less than --tile-size {tile[axis]}"
                " (both rounded up to the pooling grid); give a smaller overlap, or larger tiles"
            )
    exact = margin is not None and all(shared[axis] >= 2 * margin[axis] for axis in cut_axes)
    return Tiling(tile, shared, steps, exact)


def _image_tile(size: Size, steps: Size, margin: Size | None, pixel_bytes: int, row_bytes: int) -> Size:
    """The size of an image's tile; that of the image if it is to be computed whole."""
    half_overlap = max(margin) if margin else 8 * steps[0]
    large_tile = (TILE_SIDE_IN_REACHES * half_overlap) ** 2 * pixel_bytes
    is_narrow = margin is not None and large_tile <= LARGE_TILE_MEMORY
    # tiles of a narrow network are faster in a CPU's caches, and as good
    if math.prod(size) * pixel_bytes <= (LARGE_TILE_MEMORY if is_narrow else WHOLE_MEMORY):
        return size
    pixels = max(TILE_MEMORY, min(large_tile, LARGE_TILE_MEMORY)) // pixel_bytes
    return _grown_tile((4 * half_overlap,) * 2, steps, size, pixels, TILE_MEMORY // row_bytes)


def _volume_tile(size: Size, steps: Size, margin: Size | None, pixel_bytes: int, row_bytes: int) -> Size:
    """The size of a volume's tile, exact if `margin` is known and fits; that of the volume to compute it whole."""
    if math.prod(size) * pixel_bytes <= WHOLE_VOLUME_MEMORY:
        return size
    pixels = min(TILE_VOXELS, WHOLE_VOLUME_MEMORY // pixel_bytes)
    longest = LARGE_TILE_MEMORY // row_bytes
    if margin is not None:
        # half of the smallest exact tile is overlap, as in blended tiles
        tile = _grown_tile(tuple(4 * side for side in margin), steps, size, pixels, longest)
        if math.prod(tile) * pixel_bytes <= WHOLE_VOLUME_MEMORY and tile[0] <= longest:
            return tile
    return _grown_tile(tuple(2 * step for step in steps), steps, size, pixels, longest)


def _grown_tile(sides: Size, steps: Size, size: Size, pixels: int, longest: int) -> Size:
    """The sides of a tile, at first `sides`, that grows by `steps` while it has at most `pixels`.

    So it is about as long, in mm, along axes with distant planes, which are pooled less often. No side grows beyond
    that of the input, nor the first one beyond `longest`.
    """
    limits = list(map(round_up, size, steps))
    limits[0] = min(limits[0], max(sides[0], longest // steps[0] * steps[0]))
    tile = tuple(map(min, map(max, sides, steps), limits))
    while True:
        grown = tuple(min(side + step, limit) for side, step, limit in zip(tile, steps, limits, strict=True))
        if grown == tile or math.prod(grown) > pixels:
            return tile
        tile = grown


def round_up(value: int, step: int) -> int:
    """The next multiple of `step`."""
    return math.ceil(value / step) * step
