"""TIFFs with a place, in compressed tiles, written a few rows at a time, however large they are.

The format: https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf, and for more than 4 GB
https://www.awaresystems.be/imaging/tiff/bigtiff.html.
"""

import struct
import zlib
from itertools import chain
from typing import BinaryIO, NamedTuple

import numpy as np

from data_utils.image_io.places import ASCII_PARAMETERS, KEY_DIRECTORY, NODATA, Place

TILE = 256  # pixels of a side of a tile
COMPRESSION_LEVEL = 6
CLASSIC_BYTES = 2**32 - 2**24  # larger files have offsets of 8 bytes

# types of the values of a tag
ASCII = 2
SHORT = 3
LONG = 4
DOUBLE = 12
LONG8 = 16
LETTERS = {SHORT: "H", LONG: "L", DOUBLE: "d", LONG8: "Q"}

# codes of tags
IMAGE_WIDTH = 256
IMAGE_LENGTH = 257
BITS_PER_SAMPLE = 258
COMPRESSION = 259
PHOTOMETRIC = 262
SAMPLES_PER_PIXEL = 277
PLANAR_CONFIGURATION = 284
TILE_WIDTH = 322
TILE_LENGTH = 323
TILE_OFFSETS = 324
TILE_BYTE_COUNTS = 325
EXTRA_SAMPLES = 338
SAMPLE_FORMAT = 339

# values of tags
DEFLATE = 8
GREY = 1
RGB = 2
SAMPLES_TOGETHER = 1
SAMPLES_IN_PLANES = 2
UNSPECIFIED = 0  # TIFF has no name for the kind of a further band
SAMPLE_FORMATS = {"u": 1, "i": 2, "f": 3}  # by the kind of a type of NumPy


class Tag(NamedTuple):
    """A tag of a page: its code, the type of its values, and the values."""

    code: int
    kind: int
    values: tuple | str


class GeoTiffWriter:
    """A TIFF of `size` (H, W) at a place, written as its rows come; as a context it is finished on leaving.

    Args:
        channels: how many bands there are.
        nodata: the value of pixels without data; None if there are none.
        is_color: whether the bands are red, green and blue.
    """

    def __init__(
        self,
        file: BinaryIO,
        size: tuple[int, int],
        place: Place,
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
        self._dtype: np.dtype | None = None
        self._is_big = False
        self._rows = np.empty((channels, 0, size[1]))  # rows that are in no tile yet
        # where the tiles of each band begin, and how many bytes they have
        self._offsets: list[list[int]] = [[] for _ in range(channels)]
        self._lengths: list[list[int]] = [[] for _ in range(channels)]

    def write(self, rows: np.ndarray) -> None:
        """Append the next rows, (C, n, W)."""
        if self._dtype is None:
            self._start(rows.dtype)
        self._rows = np.concatenate([self._rows, rows], axis=1)
        while self._rows.shape[1] >= TILE:
            self._write_tiles(self._rows[:, :TILE])
            self._rows = self._rows[:, TILE:]

    def _start(self, dtype: np.dtype) -> None:
        self._dtype = dtype.newbyteorder("<")
        height, width = self.size
        self._is_big = height * width * self.channels * dtype.itemsize > CLASSIC_BYTES
        # the position of the tags, 0 here, is written at the end
        header = struct.pack("<HHHQ", 43, 8, 0, 0) if self._is_big else struct.pack("<HL", 42, 0)
        self.file.write(b"II" + header)
        self._rows = np.empty((self.channels, 0, width), dtype)

    def _write_tiles(self, rows: np.ndarray) -> None:
        """Write a row of tiles of each band, from up to TILE rows (C, n, W)."""
        _, height, width = rows.shape
        for left in range(0, width, TILE):
            columns = rows[:, :, left : left + TILE]
            tile = np.zeros((self.channels, TILE, TILE), self._dtype)
            tile[:, :height, : columns.shape[2]] = columns
            for channel, plane in enumerate(tile):
                content = zlib.compress(plane.tobytes(), COMPRESSION_LEVEL)
                self._offsets[channel].append(self.file.tell())
                self._lengths[channel].append(len(content))
                self.file.write(content)

    def __enter__(self) -> "GeoTiffWriter":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.finish()

    def finish(self) -> None:
        """Write the remaining rows and the tags, after the last row."""
        if self._dtype is None:
            return
        if self._rows.shape[1]:
            self._write_tiles(self._rows)
        self._write_directory(self._tags())

    def _tags(self) -> list[Tag]:
        """The tags of the page, in the order of their codes."""
        assert self._dtype is not None
        height, width = self.size
        count = self.channels
        offset_kind = LONG8 if self._is_big else LONG
        offsets = tuple(chain.from_iterable(self._offsets))
        lengths = tuple(chain.from_iterable(self._lengths))
        photometric = RGB if self.is_color else GREY
        configuration = SAMPLES_TOGETHER if count == 1 else SAMPLES_IN_PLANES
        tags = [
            Tag(IMAGE_WIDTH, LONG, (width,)),
            Tag(IMAGE_LENGTH, LONG, (height,)),
            Tag(BITS_PER_SAMPLE, SHORT, (8 * self._dtype.itemsize,) * count),
            Tag(COMPRESSION, SHORT, (DEFLATE,)),
            Tag(PHOTOMETRIC, SHORT, (photometric,)),
            Tag(SAMPLES_PER_PIXEL, SHORT, (count,)),
            Tag(PLANAR_CONFIGURATION, SHORT, (configuration,)),
            Tag(TILE_WIDTH, LONG, (TILE,)),
            Tag(TILE_LENGTH, LONG, (TILE,)),
            Tag(TILE_OFFSETS, offset_kind, offsets),
            Tag(TILE_BYTE_COUNTS, LONG, lengths),
            Tag(SAMPLE_FORMAT, SHORT, (SAMPLE_FORMATS[self._dtype.kind],) * count),
        ]
        if count > 1 and not self.is_color:
            tags.append(Tag(EXTRA_SAMPLES, SHORT, (UNSPECIFIED,) * (count - 1)))
        for code, values in self.place.tags:
            kind = DOUBLE
            if code == KEY_DIRECTORY:
                kind = SHORT
            elif code == ASCII_PARAMETERS:
                kind = ASCII
            tags.append(Tag(code, kind, values))
        if self.nodata is not None:
            tags.append(Tag(NODATA, ASCII, f"{self.nodata:.17g}"))
        return sorted(tags)

    def _write_directory(self, tags: list[Tag]) -> None:
        """Write the values that do not fit into tags, then the tags, then the position of the tags in the header."""
        letter = "Q" if self._is_big else "L"
        field = 8 if self._is_big else 4
        entries = []
        for tag in tags:
            count, content = _encode_tag(tag)
            if len(content) > field:
                position = self._aligned_position()
                self.file.write(content)
                content = struct.pack(f"<{letter}", position)
            entries.append(struct.pack(f"<HH{letter}", tag.code, tag.kind, count) + content.ljust(field, b"\0"))
        directory = self._aligned_position()
        self.file.write(struct.pack("<Q" if self._is_big else "<H", len(entries)))
        self.file.write(b"".join(entries) + struct.pack(f"<{letter}", 0))
        end = self.file.tell()
        self.file.seek(8 if self._is_big else 4)
        self.file.write(struct.pack(f"<{letter}", directory))
        self.file.seek(end)

    def _aligned_position(self) -> int:
        """The end of the file, at an even byte."""
        position = self.file.tell()
        if position % 2:
            self.file.write(b"\0")
            position += 1
        return position


def _encode_tag(tag: Tag) -> tuple[int, bytes]:
    """How many values a tag has, and their bytes."""
    if isinstance(tag.values, str):
        content = tag.values.encode("ascii", "replace") + b"\0"
        return len(content), content
    return len(tag.values), struct.pack(f"<{len(tag.values)}{LETTERS[tag.kind]}", *tag.values)
