"""Images too large for memory: rows read from where they lie in the file, resized as the whole image would be."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import tifffile
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from unet.preprocess import TURNED, Preprocess, read_image, readable, size_as_seen
from unet.resize import Window, resize_rows, resize_window

SEGMENT_BYTES = 2**28  # a compressed strip larger than this cannot be read in windows
CHUNK = 128  # output rows that are resized at once
TIFF_SUFFIXES = (".tif", ".tiff")
MINISBLACK, RGB = tifffile.PHOTOMETRIC.MINISBLACK, tifffile.PHOTOMETRIC.RGB
# what tifffile raises, besides, where a damaged header holds a wrong number or type (found by damaging headers)
# and imagecodecs, where that is installed, for damaged segments
DAMAGED = (AttributeError, LookupError, TypeError, ArithmeticError, AssertionError, RuntimeError)

logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what it would say is in the ImageError


class Rows(Protocol):
    """Rows of a picture: of its (H, W) `size`, `crop` gives any as something that `read_image` takes.

    The columns [left, right) of them, where those are given.
    """

    @property
    def size(self) -> tuple[int, int]: ...
    @property
    def extent(self) -> tuple[float, float]: ...  # how far (h, w) `crop` reaches: `size`, or less with less detail
    @property
    def in_windows(self) -> bool: ...  # False where the whole picture is decoded all the same

    def crop(self, start: int, stop: int, left: int = 0, right: int | None = None) -> Image.Image | np.ndarray: ...

    def drafted(self, preprocess: Preprocess) -> "Rows":
        """The rows that `preprocess` resizes from."""
        ...


class ArrayRows:
    """Rows of an array (H, W) or (H, W, C), which may be mapped from a file."""

    in_windows = True

    def __init__(
        self, array: np.ndarray, size: tuple[int, int] | None = None, extent: tuple[float, float] | None = None
    ) -> None:
        self.array, self.size, self.extent = array, size or array.shape[:2], extent or array.shape[:2]

    def crop(self, start: int, stop: int, left: int = 0, right: int | None = None) -> np.ndarray:
        return self.array[start:stop, left:right]

    def drafted(self, preprocess: Preprocess) -> "ArrayRows":
        return self


class PillowRows:
    """Rows of a picture whose format has no windows: one decoded copy, made when it is needed."""

    in_windows = False

    def __init__(self, path: Path, picture: Image.Image, page: int) -> None:
        self.path, self.picture, self.page = path, picture, page

    @cached_property
    def image(self) -> Image.Image:
        with readable(str(self.path)):
            self.picture.seek(self.page)
            ImageOps.exif_transpose(self.picture, in_place=True)
            self.picture.load()
        return self.picture

    @property
    def size(self) -> tuple[int, int]:
        return self.image.size[::-1]

    extent = size

    def crop(self, start: int, stop: int, left: int = 0, right: int | None = None) -> Image.Image:
        part = self.image.crop((left, start, self.image.width if right is None else right, stop))
        part.format = self.image.format  # of a mask, a GIF's palette means its colours
        return part

    def drafted(self, preprocess: Preprocess) -> "PillowRows":
        return self


class JpegRows:
    """Rows of a JPEG file, which has no windows either: a copy decoded when it is asked for, of the detail needed."""

    in_windows = False

    def __init__(self, path: Path, size: tuple[int, int]) -> None:
        self.path = path
        self.size = self.extent = size

    @cached_property
    def pixels(self) -> np.ndarray:
        return read_image(self.path, str(self.path))

    def crop(self, start: int, stop: int, left: int = 0, right: int | None = None) -> np.ndarray:
        return self.pixels[start:stop, left:right]

    def drafted(self, preprocess: Preprocess) -> ArrayRows:
        return ArrayRows(*preprocess.decode(self.path, str(self.path)))


class TiffRows:
    """Rows of a TIFF page, decoded tile by tile or strip by strip."""

    in_windows = True

    def __init__(self, path: Path, page: tifffile.TiffPage) -> None:
        self.path, self.page = path, page
        self.size = self.extent = (page.imagelength, page.imagewidth)

    @staticmethod
    def can_read(page: tifffile.TiffPage) -> bool:
        """Whether its values are the picture's as they stand, and its segments small and of a codec that is here."""
        layout = (page.photometric, page.samplesperpixel, str(page.dtype))
        plain = {(MINISBLACK, 1, "uint8"), (MINISBLACK, 1, "uint16"), (MINISBLACK, 1, "float32")}
        plain |= {(RGB, 3, "uint8"), (RGB, 4, "uint8")}
        upright = page.tags.valueof("Orientation", default=1) == 1
        straight = tifffile.EXTRASAMPLE.ASSOCALPHA not in page.extrasamples  # Pillow divides the colours by that alpha
        whole = page.planarconfig == 1 and page.imagedepth == 1 and page.bitspersample % 8 == 0
        if layout not in plain or not (upright and straight and whole):
            return False
        if page.is_contiguous:
            return True
        try:
            page.decode(None, 0)
        except (ValueError, ImportError):  # compressed by a codec that tifffile lacks
            return False
        return int(np.prod(page.chunks)) * np.dtype(page.dtype).itemsize <= SEGMENT_BYTES

    def crop(self, start: int, stop: int, left: int = 0, right: int | None = None) -> np.ndarray:
        right, samples = self.size[1] if right is None else right, self.page.samplesperpixel
        with readable(str(self.path), *DAMAGED), self.path.open("rb") as file:
            rows = (self._stored if self.page.is_contiguous else self._decode)(file, start, stop, left, right)
        return rows[:, :, :3] if samples == 4 else rows

    def _stored(self, file: BinaryIO, start: int, stop: int, left: int, right: int) -> np.ndarray:
        shape, kind = (stop - start, self.size[1], self.page.samplesperpixel), np.dtype(self.page.dtype)
        row_bytes = shape[1] * shape[2] * kind.itemsize
        file.seek(self.page.dataoffsets[0] + start * row_bytes)
        stored = np.frombuffer(file.read((stop - start) * row_bytes), kind.newbyteorder(self.page.parent.byteorder))
        if stored.size < np.prod(shape):
            raise OSError("the file ends before its image does")
        return stored.reshape(shape)[:, left:right].astype(kind)

    def _decode(self, file: BinaryIO, start: int, stop: int, left: int, right: int) -> np.ndarray:
        height, width = self.page.chunks[:2]
        across = -(-self.size[1] // width)
        rows = np.empty((stop - start, right - left, self.page.samplesperpixel), self.page.dtype)
        for index in range(start // height * across, -(-stop // height) * across):
            if not left // width <= index % across < -(-right // width):
                continue
            file.seek(self.page.dataoffsets[index])
            data = file.read(self.page.databytecounts[index])
            segment, (_, _, top, first, _), _ = self.page.decode(data, index, jpegtables=self.page.jpegtables)
            if segment is None:  # a tile left out stands for zeros
                segment = np.zeros((1, height, width, rows.shape[2]), rows.dtype)
            segment = segment[0, max(start - top, 0) : stop - top, max(left - first, 0) : right - first]
            places = max(top - start, 0), max(first - left, 0)
            rows[tuple(slice(at, at + n) for at, n in zip(places, segment.shape, strict=False))] = segment
        return rows

    def drafted(self, preprocess: Preprocess) -> "TiffRows":
        return self


def tiff_pages(path: Path) -> list[tuple[int, tuple[int, int]]]:
    """(page, (H, W)) of a TIFF's pages, save the small copies that some programs store beside them."""
    with readable(str(path), *DAMAGED), tifffile.TiffFile(path) as tiff:
        pages = [(index, page.aspage()) for index, page in enumerate(tiff.pages)]
        return [(index, _upright_size(page)) for index, page in pages if index == 0 or not page.is_reduced]


def _upright_size(page: tifffile.TiffPage) -> tuple[int, int]:
    size = int(page.imagelength), int(page.imagewidth)  # a damaged header may hold anything
    return size[::-1] if page.tags.valueof("Orientation", default=1) in TURNED else size


@contextmanager
def open_rows(path: Path, page: int = 0) -> Iterator[Rows]:
    """The rows of a picture file: from the file itself for `.npy` and most TIFFs, else from one decoded copy.

    ImageError for what cannot be read.
    """
    with ExitStack() as stack:
        with readable(str(path), *DAMAGED):
            rows = _rows(path, page, stack)
        yield rows


def _rows(path: Path, page: int, stack: ExitStack) -> Rows:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim not in (2, 3) or not array.size:
            raise ValueError(f"its shape is {array.shape}, not (H, W) or (H, W, C)")
        return ArrayRows(array)
    if suffix in TIFF_SUFFIXES:
        tiff_page = stack.enter_context(tifffile.TiffFile(path)).pages[page].aspage()
        if TiffRows.can_read(tiff_page):
            return TiffRows(path, tiff_page)
    picture = stack.enter_context(Image.open(path))
    if isinstance(picture, JpegImageFile):
        return JpegRows(path, size_as_seen(picture))
    return PillowRows(path, picture, page)


def network_rows(rows: Rows, preprocess: Preprocess, channels: int, name: str, start: int, stop: int) -> np.ndarray:
    """Rows [start, stop) of what `preprocess.image` gives for the whole picture, bit for bit: (C, stop - start, w)."""

    def read(first: int, last: int) -> np.ndarray:
        return preprocess.fit(read_image(rows.crop(first, last), name), channels, name)

    size, pixels = preprocess.target_size(*rows.size), np.empty((channels, 0, 0))
    for first in range(start, stop, CHUNK):
        part = resize_rows(read, rows.extent, size, first, min(first + CHUNK, stop)).transpose(2, 0, 1)
        if first == start:
            kind = np.uint8 if part.dtype == np.uint8 else np.float32
            pixels = np.empty((channels, stop - start, size[1]), kind)
        pixels[:, first - start : first - start + part.shape[1]] = part
    return pixels


def network_crop(
    rows: Rows, window: Window, name: str = "image", *, preprocess: Preprocess, channels: int
) -> np.ndarray:
    """The `window` of what `preprocess.image` gives for the whole picture: (C, h, w).

    But for `detect_unit_range`: a crop does not know the rest, and a picture this large is not taken for one in 0..1.
    """

    def read(top: int, bottom: int, left: int, right: int) -> np.ndarray:
        return preprocess.fit(read_image(rows.crop(top, bottom, left, right), name), channels, name)

    pixels = resize_window(read, rows.size, preprocess.target_size(*rows.size), window).transpose(2, 0, 1)
    return np.ascontiguousarray(pixels, np.uint8 if pixels.dtype == np.uint8 else np.float32)
