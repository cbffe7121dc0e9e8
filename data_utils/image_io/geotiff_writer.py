"""TIFFs with a place, in compressed tiles, written a few rows at a time, however large they are."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import numpy as np
import tifffile

from data_utils.image_io.places import NODATA, Place

TILE = 256  # pixels of a side of a tile
COMPRESSION_LEVEL = 6
CLASSIC_BYTES = 2**32 - 2**24  # larger files have offsets of 8 bytes


class GeoTiffWriter:
    """A TIFF of `size` (H, W) at a place, written as its rows come; as a context it is finished on leaving.

    Args:
        folder: where its tiles are kept until all of them are known, in a file without name.
        channels: how many bands there are; the file has one after the other.
        nodata: the value of pixels without data; None if there are none.
        is_color: whether the bands are red, green and blue.
    """

    def __init__(
        self,
        file: BinaryIO,
        size: tuple[int, int],
        place: Place,
        folder: Path,
        channels: int = 1,
        nodata: float | None = None,
        *,
        is_color: bool = False,
    ) -> None:
        self.file = file
        self.size = size
        self.place = place
        self.channels = channels
        self.nodata = nodata
        self.is_color = is_color
        self._rows: np.ndarray | None = None  # rows that are in no tile yet
        self._tiles = TemporaryFile(dir=folder)  # noqa: SIM115  # it lives as long as the writer
        self._lengths: list[list[int]] = []  # bytes of the tiles of a row, of all bands, for each row of tiles

    def write(self, rows: np.ndarray) -> None:
        """Append the next rows, (C, n, W)."""
        self._rows = rows if self._rows is None else np.concatenate([self._rows, rows], axis=1)
        while self._rows.shape[1] >= TILE:
            self._write_tiles(self._rows[:, :TILE])
            self._rows = self._rows[:, TILE:]

    def _write_tiles(self, rows: np.ndarray) -> None:
        """Compress a row of tiles of each band, from up to TILE rows (C, n, W)."""
        _, height, width = rows.shape
        lengths = []
        for plane in rows:
            for left in range(0, width, TILE):
                part = plane[:, left : left + TILE]
                tile = np.zeros((TILE, TILE), rows.dtype.newbyteorder("<"))
                tile[:height, : part.shape[1]] = part
                lengths.append(self._tiles.write(zlib.compress(tile.tobytes(), COMPRESSION_LEVEL)))
        self._lengths.append(lengths)

    def __enter__(self) -> "GeoTiffWriter":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None and self._rows is not None:
            self._finish(self._rows)
        self._tiles.close()

    def _finish(self, rows: np.ndarray) -> None:
        if rows.shape[1]:
            self._write_tiles(rows)
        height, width = self.size
        pixel_bytes = height * width * self.channels * rows.itemsize
        with tifffile.TiffWriter(self.file, bigtiff=pixel_bytes > CLASSIC_BYTES, byteorder="<") as tiff:
            tiff.write(
                self._tiles_by_band(),
                shape=(self.channels, height, width) if self.channels > 1 else self.size,
                dtype=rows.dtype,
                photometric="rgb" if self.is_color else "minisblack",
                planarconfig="separate" if self.channels > 1 else None,
                tile=(TILE, TILE),
                compression="zlib",
                extratags=self._place_tags(),
                metadata=None,
                software=False,
            )

    def _tiles_by_band(self) -> Iterator[bytes]:
        lengths = np.array(self._lengths)
        starts = (np.cumsum(lengths) - lengths.ravel()).reshape(len(lengths), self.channels, -1)
        lengths = lengths.reshape(starts.shape)
        for start, length in zip(np.moveaxis(starts, 1, 0).flat, np.moveaxis(lengths, 1, 0).flat, strict=True):
            self._tiles.seek(start)
            yield self._tiles.read(length)

    def _place_tags(self) -> list[tuple]:
        """The tags of the place, and of the value without data."""
        tags = list(self.place.tags)
        if self.nodata is not None:
            tags.append((NODATA, "s", 0, f"{self.nodata:.17g}", True))
        return tags
