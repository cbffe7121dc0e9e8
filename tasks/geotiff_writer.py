"""TIFFs in compressed tiles, with a place if there is one, however large they are."""

import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np
import tifffile

from data_utils.image_io.places import NODATA, Place

TILE = 256  # pixels of a side of a tile
COMPRESSION_LEVEL = 6
CLASSIC_BYTES = 2**32 - 2**24  # larger files have offsets of 8 bytes
ReadTile = Callable[[int, slice, slice], np.ndarray]  # the values (h, w) of a channel in some rows and columns


def write_geotiff(
    file: BinaryIO,
    shape: tuple[int, int, int],
    read: ReadTile,
    place: Place | None,
    nodata: float | None = None,
    *,
    is_color: bool = False,
) -> None:
    """Write a TIFF of `shape` (C, H, W), one band after the other, a tile at a time.

    Args:
        read: returns a tile; all have the type of the first one.
        nodata: the value of pixels without data; None if there are none.
        is_color: whether the bands are red, green and blue.
    """
    channels, height, width = shape
    dtype = read(0, slice(1), slice(1)).dtype

    def tiles() -> Iterator[bytes]:
        for channel in range(channels):
            for top in range(0, height, TILE):
                for left in range(0, width, TILE):
                    rows = slice(top, min(top + TILE, height))
                    columns = slice(left, min(left + TILE, width))
                    part = read(channel, rows, columns)
                    tile = np.zeros((TILE, TILE), dtype.newbyteorder("<"))
                    tile[: part.shape[0], : part.shape[1]] = part
                    yield zlib.compress(tile.tobytes(), COMPRESSION_LEVEL)

    pixel_bytes = channels * height * width * dtype.itemsize
    with tifffile.TiffWriter(file, bigtiff=pixel_bytes > CLASSIC_BYTES, byteorder="<") as tiff:
        tiff.write(
            tiles(),
            shape=shape if channels > 1 else (height, width),
            dtype=dtype,
            photometric="rgb" if is_color else "minisblack",
            planarconfig="separate" if channels > 1 else None,
            tile=(TILE, TILE),
            compression="zlib",
            extratags=_tags(place, nodata),
            metadata=None,
            software=False,
        )


def _tags(place: Place | None, nodata: float | None) -> list[tuple]:
    """The tags of a place, and of the value without data."""
    tags = list(place.tags) if place else []
    if nodata is not None:
        tags.append((NODATA, "s", 0, f"{nodata:.17g}", True))
    return tags
