"""Images too large for memory: rows read from where they lie in the file, resized as the whole image would be."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import tifffile
from PIL import Image, ImageOps

from unet.preprocess import Preprocess, fit_channels, read_image, readable, resize_image

SEGMENT_BYTES = 2**28  # a compressed strip larger than this cannot be read in windows
CHUNK = 128  # output rows that are resized at once
TIFF_SUFFIXES = (".tif", ".tiff")
TURNED = (5, 6, 7, 8)  # orientations that swap height and width
MINISBLACK, RGB = tifffile.PHOTOMETRIC.MINISBLACK, tifffile.PHOTOMETRIC.RGB
# what tifffile raises, besides, where a damaged header holds a wrong number or type (found by damaging headers)
DAMAGED = (AttributeError, LookupError, TypeError, ArithmeticError, AssertionError)

logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what it would say is in the ImageError


class Rows(Protocol):
    """Rows of a picture: of its (H, W) `size`, `crop` gives any as something that `read_image` takes."""

    size: tuple[int, int]
    in_windows: bool  # False where the whole picture is decoded all the same

    def crop(self, start: int, stop: int) -> Image.Image | np.ndarray: ...


class ArrayRows:
    """Rows of an array (H, W) or (H, W, C), which may be mapped from a file."""

    in_windows = True

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.size = array, array.shape[:2]

    def crop(self, start: int, stop: int) -> np.ndarray:
        return self.array[start:stop]


class PillowRows:
    """Rows of a picture whose format has no windows: one decoded copy."""

    in_windows = False

    def __init__(self, path: Path, page: int) -> None:
        self.image = Image.open(path)
        self.image.seek(page)
        ImageOps.exif_transpose(self.image, in_place=True)
        self.image.load()
        self.size = self.image.size[::-1]

    def crop(self, start: int, stop: int) -> Image.Image:
        return self.image.crop((0, start, self.image.width, stop))


class TiffRows:
    """Rows of a TIFF page, decoded tile by tile or strip by strip."""

    in_windows = True

    def __init__(self, path: Path, page: tifffile.TiffPage) -> None:
        self.path, self.page, self.size = path, page, (page.imagelength, page.imagewidth)

    @staticmethod
    def can_read(page: tifffile.TiffPage) -> bool:
        """Whether its values are the picture's as they stand, and its segments small and of a codec that is here."""
        layout = (page.photometric, page.samplesperpixel, str(page.dtype))
        plain = {(MINISBLACK, 1, "uint8"), (MINISBLACK, 1, "uint16"), (MINISBLACK, 1, "float32")}
        plain |= {(RGB, 3, "uint8"), (RGB, 4, "uint8")}
        upright = page.tags.valueof("Orientation", default=1) == 1
        if (
            layout not in plain
            or not upright
            or page.planarconfig != 1
            or page.imagedepth != 1
            or page.bitspersample % 8
        ):
            return False
        if page.is_contiguous:
            return True
        try:
            page.decode(None, 0)
        except (ValueError, ImportError):  # compressed by a codec that tifffile lacks
            return False
        return np.prod(page.chunks) * page.dtype.itemsize <= SEGMENT_BYTES

    def crop(self, start: int, stop: int) -> np.ndarray:
        samples = self.page.samplesperpixel
        rows = np.empty((stop - start, self.size[1], samples), self.page.dtype)
        with readable(str(self.path), *DAMAGED), self.path.open("rb") as file:
            if self.page.is_contiguous:
                row_bytes = rows[0].nbytes
                file.seek(self.page.dataoffsets[0] + start * row_bytes)
                stored = np.frombuffer(file.read(rows.nbytes), rows.dtype.newbyteorder(self.page.parent.byteorder))
                if stored.size < rows.size:
                    raise OSError("the file ends before its image does")
                rows[:] = stored.reshape(rows.shape)
            else:
                self._decode(file, start, rows)
        return rows[:, :, :3] if samples == 4 else rows

    def _decode(self, file: BinaryIO, start: int, rows: np.ndarray) -> None:
        height, width = self.page.chunks[:2]
        across = -(-self.size[1] // width)
        first, last = start // height, -(-(start + len(rows)) // height)
        for index in range(first * across, last * across):
            file.seek(self.page.dataoffsets[index])
            data = file.read(self.page.databytecounts[index])
            segment, (_, _, top, left, _), _ = self.page.decode(data, index, jpegtables=self.page.jpegtables)
            if segment is None:  # a tile left out stands for zeros
                segment = np.zeros((1, height, width, rows.shape[2]), rows.dtype)
            segment = segment[0, max(start - top, 0) :, : self.size[1] - left]
            place = max(top - start, 0)
            segment = segment[: len(rows) - place]
            rows[place : place + len(segment), left : left + segment.shape[1]] = segment


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
        return ArrayRows(np.load(path, mmap_mode="r", allow_pickle=False))
    if suffix in TIFF_SUFFIXES:
        tiff_page = stack.enter_context(tifffile.TiffFile(path)).pages[page].aspage()
        if TiffRows.can_read(tiff_page):
            return TiffRows(path, tiff_page)
    return PillowRows(path, page)


def network_rows(
    rows: Rows, preprocess: Preprocess, channels: int, start: int, stop: int, name: str = "image"
) -> np.ndarray:
    """Rows [start, stop) of what `preprocess.image` gives for the whole picture, bit for bit: (C, stop - start, w)."""
    size = preprocess.target_size(*rows.size)
    pixels = None
    for first in range(start, stop, CHUNK):
        part = _resized_rows(rows, size, channels, first, min(first + CHUNK, stop), name).transpose(2, 0, 1)
        if pixels is None:
            kind = np.uint8 if part.dtype == np.uint8 else np.float32
            pixels = np.empty((channels, stop - start, size[1]), kind)
        pixels[:, first - start : first - start + part.shape[1]] = part
    return pixels


def _resized_rows(rows: Rows, size: tuple[int, int], channels: int, start: int, stop: int, name: str) -> np.ndarray:
    def read(first: int, last: int) -> np.ndarray:
        return fit_channels(read_image(rows.crop(first, last), name), channels, name)

    if size[0] == rows.size[0]:
        return resize_image(read(start, stop), (stop - start, size[1]))
    taps, weights = _bicubic(rows.size[0], size[0], start, stop)
    pixels = read(taps.min(), taps.max() + 1)
    integer = pixels.dtype == np.uint8
    fixed_point = integer and channels in (1, 3)  # Pillow's arithmetic for its 8-bit modes
    if not fixed_point:
        pixels = pixels.astype(np.float32)
    pixels = resize_image(pixels, (len(pixels), size[1]))
    pixels = _weighted(pixels, taps - taps.min(), weights, fixed_point)
    return pixels.round().clip(0, 255).astype(np.uint8) if integer else pixels


def _bicubic(length: int, target: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and weights, (n, taps) each, that make targets [start, stop) of `length` pixels resized to `target`.

    Keys' cubic with a = -1/2, widened when shrinking, as in Pillow's Resample.c.
    """
    scale = length / target
    widening = max(scale, 1.0)
    centers = (np.arange(start, stop) + 0.5) * scale
    first = np.maximum((centers - 2 * widening + 0.5).astype(int), 0)
    last = np.minimum((centers + 2 * widening + 0.5).astype(int), length)
    taps = first[:, None] + np.arange((last - first).max())
    x = np.abs((taps - centers[:, None] + 0.5) / widening)
    weights = np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, (((x - 5) * x + 8) * x - 4) * -0.5, 0))
    weights[taps >= last[:, None]] = 0
    return np.minimum(taps, length - 1), weights / weights.sum(axis=1, keepdims=True)


def _weighted(pixels: np.ndarray, taps: np.ndarray, weights: np.ndarray, fixed_point: bool) -> np.ndarray:
    """(H, w, C) -> (n, w, C): the sum over each target's taps, rounded as Pillow rounds."""
    bits = 22
    if fixed_point:
        weights = np.trunc(weights * 2**bits + np.copysign(0.5, weights)).astype(np.int32)
    sums = np.full((len(taps), *pixels.shape[1:]), 1 << bits - 1 if fixed_point else 0, weights.dtype)
    for tap in range(taps.shape[1]):
        sums += pixels[taps[:, tap]] * weights[:, tap, None, None]
    return (sums >> bits).clip(0, 255).astype(np.uint8) if fixed_point else sums.astype(np.float32)
