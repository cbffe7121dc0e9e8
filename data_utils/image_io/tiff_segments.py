"""The tiles and strips of TIFF pages, and windows that are made of them."""

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np
import tifffile
from PIL import Image

from data_utils.image_io.formats import check_memory, open_binary, open_picture
from data_utils.image_io.places import NODATA, has_place_tags
from data_utils.image_io.tiff import SEGMENT_BYTES, check_segments, has_codec, reads_right

CACHED_BYTES = 3 * 2**26  # decoded tiles that are kept: a row of them is read again for each strip of rows
SWAPPED_TYPES = ("int16", "int32", "uint32", "float32")  # grey whose bytes alone Pillow swaps, or whose sign it changes
Range = tuple[int, int]  # first and last pixel along a side, the last one left out


class Segments:
    """The tiles or strips of a TIFF page.

    Args:
        file: its file, or the bytes of it.
        fill_value: the value of pixels in tiles that the file leaves out.
        keeps_decoded: whether the last decoded ones are kept in memory.
    """

    def __init__(
        self, file: Path | bytes, page: tifffile.TiffPage, fill_value: float, *, keeps_decoded: bool = True
    ) -> None:
        self.file = file
        self.page = page
        self.fill_value = fill_value
        self.keeps_decoded = keeps_decoded
        self.dtype = np.dtype(page.dtype)
        self.size = (_side(page.imagelength), _side(page.imagewidth))
        self.is_planar = page.planarconfig == 2
        self.sample_count = int(page.samplesperpixel)
        if page.is_tiled:
            self.segment_size = (_side(page.tilelength), _side(page.tilewidth))
        else:
            self.segment_size = (min(_side(page.rowsperstrip), self.size[0]), self.size[1])
        check_segments(page)
        self._decoded: OrderedDict[int, np.ndarray | None] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def segment_bytes(self) -> int:
        """How much memory a decoded segment takes."""
        samples_together = 1 if self.is_planar else self.sample_count
        return self.segment_size[0] * self.segment_size[1] * samples_together * self.dtype.itemsize

    @property
    def decodes_windows(self) -> bool:
        """Whether a window can be read without decoding most of the file."""
        return self.page.is_contiguous or (self._has_codec and self.segment_bytes <= SEGMENT_BYTES)

    @cached_property
    def _has_codec(self) -> bool:
        # Pillow makes colors of photographs, so that these are the same with and without a place
        return has_codec(self.page.compression) and not is_photograph(self.page)

    def read(self, rows: Range, columns: Range, samples: Sequence[int]) -> np.ndarray:
        """A window (n, m, C) of some samples."""
        shape = (rows[1] - rows[0], columns[1] - columns[0], len(samples))
        check_memory(int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize, "a part of the image")
        with open_binary(self.file) as file:
            if self.page.is_contiguous:
                return self._read_stored(file, rows, columns, samples)
            if not self._has_codec:
                return self._picture[slice(*rows), slice(*columns)][:, :, sample_index(samples)]
            return self._window(file, rows, columns, samples, shape)

    def _read_stored(self, file: BinaryIO, rows: Range, columns: Range, samples: Sequence[int]) -> np.ndarray:
        """A window of a page that is not compressed, whose rows lie one behind the other."""
        height, width = self.size
        start = self.page.dataoffsets[0]
        if not self.is_planar:
            values = stored_rows(file, self.page, start, rows, self.sample_count)[:, slice(*columns)]
            return values[:, :, sample_index(samples)].astype(self.dtype)
        plane_bytes = height * width * self.dtype.itemsize
        planes = []
        for sample in samples:
            plane = stored_rows(file, self.page, start + sample * plane_bytes, rows, 1)
            planes.append(plane[:, slice(*columns), 0])
        return np.stack(planes, axis=2)

    def _window(
        self, file: BinaryIO, rows: Range, columns: Range, samples: Sequence[int], shape: tuple[int, int, int]
    ) -> np.ndarray:
        """A window of a page in segments, each decoded if the window reaches into it."""
        height, width = self.segment_size
        segments_across = -(-self.size[1] // width)
        segments_down = -(-self.size[0] // height)
        segments = segments_across * segments_down
        window = np.empty(shape, self.dtype)
        for row in range(rows[0] // height, -(-rows[1] // height)):
            for column in range(columns[0] // width, -(-columns[1] // width)):
                index = row * segments_across + column
                inside, outside = _overlap((row, column), self.segment_size, rows, columns)
                if not self.is_planar:
                    values = self._segment(file, index)
                    window[outside] = self.fill_value if values is None else values[inside][:, :, sample_index(samples)]
                    continue
                for number, sample in enumerate(samples):
                    values = self._segment(file, sample * segments + index)
                    window[(*outside, number)] = self.fill_value if values is None else values[inside][:, :, 0]
        return window

    def _segment(self, file: BinaryIO, index: int) -> np.ndarray | None:
        """A decoded segment (h, w, C); None for one that is left out of the file."""
        with self._lock:
            if index in self._decoded:
                self._decoded.move_to_end(index)
                return self._decoded[index]
        length = self.page.databytecounts[index]
        values = None
        if length:
            check_memory(self.segment_bytes, "a tile or strip of it")
            file.seek(self.page.dataoffsets[index])
            segment, *_ = self.page.decode(file.read(length), index, jpegtables=self.page.jpegtables)
            values = None if segment is None else segment[0]
        if not self.keeps_decoded:
            return values
        with self._lock:
            if index not in self._decoded:
                self._decoded[index] = values
                self._bytes += self.segment_bytes
            while self._bytes > CACHED_BYTES and len(self._decoded) > 1:
                self._decoded.popitem(last=False)
                self._bytes -= self.segment_bytes
        return values

    @cached_property
    def _picture(self) -> np.ndarray:
        """All pixels (H, W, C) of a page whose codec only Pillow has."""
        codec = getattr(self.page.compression, "name", self.page.compression)
        missing_codec = f"it is compressed by {codec}, which needs a library; pip install -r requirements-geo.txt"
        is_right = reads_right(self.page)
        if not is_right and (self.sample_count > 1 or str(self.dtype) not in SWAPPED_TYPES):
            raise ValueError(missing_codec)
        try:
            with open_binary(self.file) as file, open_picture(file) as picture:
                picture.seek(self.page.index)
                is_video = picture.mode == "YCbCr"
                pixels = np.asarray(picture.convert("RGB") if is_video else picture)
        except (Image.UnidentifiedImageError, EOFError, KeyError) as error:
            raise ValueError(missing_codec) from error
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        if pixels.shape != (*self.size, self.sample_count):
            raise ValueError(f"it is of shape {pixels.shape} as decoded")
        pixels = pixels.astype(self.dtype)
        return pixels if is_right or self.page.parent.byteorder == "<" else pixels.byteswap()


def stored_rows(
    file: BinaryIO, page: tifffile.TiffPage, start: int, rows: tuple[int, int], samples_together: int
) -> np.ndarray:
    """Rows (n, W, samples_together) of an image, or plane, that begins at a byte of the file and is not compressed."""
    dtype = np.dtype(page.dtype)
    shape = (rows[1] - rows[0], page.imagewidth, samples_together)
    row_bytes = shape[1] * samples_together * dtype.itemsize
    file.seek(start + rows[0] * row_bytes)
    data = file.read(shape[0] * row_bytes)
    if len(data) < shape[0] * row_bytes:
        raise OSError("the file ends before its image does")
    return np.frombuffer(data, dtype.newbyteorder(page.parent.byteorder)).reshape(shape)


def sample_index(samples: Sequence[int]) -> slice | list[int]:
    """An index for samples of an array; if the samples are consecutive, a slice, which copies nothing."""
    first = samples[0]
    if list(samples) == list(range(first, first + len(samples))):
        return slice(first, first + len(samples))
    return list(samples)


def _overlap(
    tile: tuple[int, int], segment: tuple[int, int], rows: Range, columns: Range
) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Where a tile and a window overlap: in the tile, and in the window."""
    inside = []
    outside = []
    for number, length, (start, stop) in zip(tile, segment, (rows, columns), strict=True):
        first = max(number * length, start)
        last = min((number + 1) * length, stop)
        inside.append(slice(first - number * length, last - number * length))
        outside.append(slice(first - start, last - start))
    return (inside[0], inside[1]), (outside[0], outside[1])


def _side(value: object) -> int:
    """A length in pixels; a damaged header may hold anything."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"a side of it, or of a tile of it, is {str(value)[:40]}")
    return value


def is_photograph(page: tifffile.TiffPage) -> bool:
    """Whether a page with a place is a JPEG of the colors of video, as aerial photographs are stored."""
    is_video = page.photometric == tifffile.PHOTOMETRIC.YCBCR and page.compression == tifffile.COMPRESSION.JPEG
    return is_video and has_place_tags(page)


def read_nodata(page: tifffile.TiffPage) -> float | None:
    """The value of pixels without data; None if there is none, or if the type of the pixels cannot hold it."""
    text = page.tags.valueof(NODATA)
    dtype = np.dtype(page.dtype)
    if not isinstance(text, str):
        return None
    try:
        value = float(text.strip(" \0"))
    except ValueError:
        return None
    if dtype.kind == "f":
        return value
    limits = np.iinfo(dtype)
    if value != np.floor(value) or not limits.min <= value <= limits.max:
        return None
    return int(value)
