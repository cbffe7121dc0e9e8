"""The pixels of a TIFF page in windows: mapped from the file, or decoded by GDAL or Pillow."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import tifffile

from data_utils.image_io.formats import check_memory, open_binary
from data_utils.image_io.gdal import gdal_errors, open_directory
from data_utils.image_io.pictures import open_picture
from data_utils.image_io.places import has_place_tags
from data_utils.image_io.tiff import check_segments

MOST_BLOCK_BYTES = 2**28  # a compressed strip larger than this is not read for a window
Range = tuple[int, int]  # first and last pixel along a side, the last one left out


class PagePixels:
    """The pixels of a page, which are opened when they are first read, and open as long as `stack` is.

    Attributes:
        size: (H, W).
        dtype: the type of the pixels, as stored.
    """

    def __init__(self, file: Path | bytes, page: tifffile.TiffPage, stack: ExitStack) -> None:
        self.file = file
        self.page = page
        self.stack = stack
        self.dtype = np.dtype(page.dtype)
        self.size = (_side(page.imagelength), _side(page.imagewidth))
        self._samples_together = 1 if page.planarconfig == 2 else int(page.samplesperpixel)
        if page.is_tiled:
            block = (_side(page.tilelength), _side(page.tilewidth))
        else:
            block = (min(_side(page.rowsperstrip), self.size[0]), self.size[1])
        self._block_bytes = prod(block) * self._samples_together * self.dtype.itemsize
        check_segments(page)
        self._lock = Lock()  # threads must not read one data set at the same time

    @property
    def decodes_windows(self) -> bool:
        """Whether a window can be read without decoding most of the page."""
        if is_photograph(self.page):
            return False
        return self.page.is_contiguous or self._block_bytes <= MOST_BLOCK_BYTES

    @property
    def has_codec(self) -> bool:
        """Whether the pixels can be read: rasterio may be missing, or a codec in it."""
        try:
            return self.page.is_contiguous or self._data_set is not None
        except Exception:  # an error for each kind of damage; other readers report it
            return False

    def read(self, rows: Range, columns: Range, samples: Sequence[int]) -> np.ndarray:
        """A window (n, m, C) of some samples."""
        shape = (len(samples), rows[1] - rows[0], columns[1] - columns[0])
        check_memory(prod(shape) * self.dtype.itemsize, "a part of the image")
        if is_photograph(self.page):
            pixels = self._photograph
        elif self.page.is_contiguous:
            # again for each window: pages of the file that were read count as memory
            pixels = self._mapped()
        else:
            check_memory(self._block_bytes, "a tile or strip of it")
            with self._lock, gdal_errors("{}"):
                planes = self._data_set.read([sample + 1 for sample in samples], window=(rows, columns))
            return np.ascontiguousarray(np.moveaxis(planes, 0, 2))
        return pixels[slice(*rows), slice(*columns)][:, :, sample_index(samples)].astype(self.dtype, order="C")

    @cached_property
    def _data_set(self) -> Any:
        """The page in GDAL."""
        return open_directory(self.file, self.page.index, self.stack)

    @cached_property
    def _photograph(self) -> np.ndarray:
        """(H, W, 3) of a photograph, whose colors Pillow makes, so that they are the same with and without a place."""
        with open_binary(self.file) as file, open_picture(file) as picture:
            picture.seek(self.page.index)
            return np.asarray(picture.convert("RGB"))

    def _mapped(self) -> np.ndarray:
        """(H, W, C) of a page that is not compressed, where it lies in the file."""
        dtype = self.dtype.newbyteorder(self.page.parent.byteorder)
        planes = int(self.page.samplesperpixel) // self._samples_together
        shape = (planes, *self.size, self._samples_together)
        start = self.page.dataoffsets[0]
        if isinstance(self.file, bytes):
            pixels = np.frombuffer(self.file, dtype, prod(shape), start).reshape(shape)
        else:
            pixels = np.memmap(self.file, dtype, "r", start, shape)
        return pixels[0] if planes == 1 else np.moveaxis(pixels[..., 0], 0, 2)


def is_photograph(page: tifffile.TiffPage) -> bool:
    """Whether a page with a place is a JPEG of the colors of video, as aerial photographs are stored."""
    is_video = page.photometric == tifffile.PHOTOMETRIC.YCBCR and page.compression == tifffile.COMPRESSION.JPEG
    return is_video and has_place_tags(page)


def sample_index(samples: Sequence[int]) -> slice | list[int]:
    """An index for samples of an array; if the samples are consecutive, a slice, which copies nothing."""
    first = samples[0]
    if list(samples) == list(range(first, first + len(samples))):
        return slice(first, first + len(samples))
    return list(samples)


def _side(value: object) -> int:
    """A length in pixels; a damaged header may hold anything."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"a side of it, or of a tile of it, is {str(value)[:40]}")
    return value
