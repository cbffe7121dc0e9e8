"""Rasters: TIFFs with any number of bands, whose pixels may hold no data; GDAL reads them in windows."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from copy import copy
from functools import cached_property, reduce
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import tifffile

from data_utils.image_io.formats import COPIES, TIFF_SUFFIXES, BandSource, Box, PageFile, check_memory
from data_utils.image_io.gdal import gdal_errors, open_directory
from data_utils.image_io.tiff import (
    TIFF_STARTS,
    alpha_sample,
    check_segments,
    has_bands,
    has_place_tags,
    has_plain_pixels,
    is_tiff,
    open_page,
    open_tiff,
    page_size,
    reads_right,
)
from data_utils.image_io.windowed import WindowedImage, is_large_size
from runtime.console import listing
from runtime.errors import ImageError

HUGE_NODATA = 1e30
DESCRIPTIONS = 42112  # tag of GDAL: names and meanings of bands
NODATA = 42113  # tag of GDAL: the value of pixels without data, as text
HUGE_TOLERANCE = 0.01
MOST_BLOCK_BYTES = 2**28  # a compressed strip larger than this is not read for a window
# the types that Pillow converts pixel types to, so that a file is read alike with and without a place
PILLOW_TYPES = {"int8": "int32", "int16": "int32", "float16": "float32", "float64": "float32"}


class Raster(WindowedImage):
    """Bands of a page of a TIFF, open as long as `stack` is; windows are masked where bands hold no data.

    Args:
        file: its file, or the bytes of it.
        mask: the page that says which pixels hold data.
        knows_missing: whether pixels may hold no data; else all values are numbers, as in pictures.

    Attributes:
        dtype: the type in which the pixels are read.
        alpha: the sample that says how opaque pixels are.
        samples: the samples that are read, all but alpha.
    """

    suffixes = TIFF_SUFFIXES
    marks = TIFF_STARTS

    def __init__(
        self,
        file: Path | bytes,
        page: tifffile.TiffPage,
        stack: ExitStack,
        *,
        mask: tifffile.TiffPage | None = None,
        knows_missing: bool = False,
    ) -> None:
        self.file = file
        self.page = page
        self.path = Path("image") if isinstance(file, bytes) else file
        self.size = self.extent = page_size(page)
        check_segments(page)
        self.stored_type = np.dtype(page.dtype)
        self.dtype = np.dtype(PILLOW_TYPES.get(str(self.stored_type), self.stored_type))
        self._stack = stack
        self._lock = Lock()  # threads must not read one data set at the same time
        self._mask_page = mask
        self._block_bytes = prod(page.chunks) * self.stored_type.itemsize
        self.alpha = self._find_alpha()
        self.samples = [sample for sample in range(page.samplesperpixel) if sample != self.alpha]
        self._knows_missing = knows_missing
        self._may_be_nan = knows_missing and self.stored_type.kind == "f"
        says_missing = NODATA in page.tags or mask is not None or self.alpha is not None
        self.may_lack_data = knows_missing and (self._may_be_nan or says_missing)
        self.decodes_windows = page.is_contiguous or self._block_bytes <= MOST_BLOCK_BYTES

    @cached_property
    def _data_set(self) -> Any:
        """The page as GDAL opens it, which takes longer than reading the page's tags."""
        return open_directory(self.file, self.page.index, self._stack)

    @cached_property
    def _mask(self) -> Any:
        """The page that says which pixels hold data."""
        assert self._mask_page is not None
        return open_directory(self.file, self._mask_page.index, self._stack)

    def _find_alpha(self) -> int | None:
        if DESCRIPTIONS in self.page.tags:
            colors = [color.name for color in self._data_set.colorinterp]
            return colors.index("alpha") if "alpha" in colors else None
        return alpha_sample(self.page)

    @property
    def names(self) -> list[str]:
        """The names of all samples of the page; empty texts where they have none."""
        if DESCRIPTIONS in self.page.tags:
            return [name or "" for name in self._data_set.descriptions]
        return [""] * int(self.page.samplesperpixel)

    @property
    def mode(self) -> str:  # type: ignore[override]
        return f"{self.dtype} x {len(self.samples)}"

    @classmethod
    def open_file(cls, file: PageFile, name: str, stack: ExitStack) -> WindowedImage | None:
        """The raster of a file; None for a file that is read as a picture.

        A TIFF is a raster if it has a place that is read, if Pillow does not read it right, if its pages are channels,
        or if it is so large that windows of it are read.
        """
        path = file.path if isinstance(file.path, bytes) else Path(file.path)
        if file.more_channels:
            pages = (file.page or 0, *file.more_channels)
            return JoinedRasters([_open_bands_of(path, page, stack, takes_palettes=True) for page in pages])
        try:
            tiff = stack.enter_context(open_tiff(path))
            tiff.pages[0].aspage()
        except Exception:
            return None  # Pillow reads more of a damaged file than tifffile, and reports the damage
        page = open_page(tiff, file.page or 0)
        has_place = file.reads_place and has_place_tags(page)
        if reads_right(page) and not (has_place and has_bands(page)):
            check_segments(page)
            if not (has_plain_pixels(page) and is_large_size(page_size(page))):
                return None
            picture = cls(path, page, stack)
            return picture.with_samples(picture.samples[:3]) if picture.decodes_windows else None
        if not has_bands(page):
            raise ValueError(
                f"pixels of type {page.dtype} are read only if they are upright and not complex; store them so"
            )
        knows_missing = has_place or page.samplesperpixel > 1
        return cls(path, page, stack, mask=_mask_page(tiff, page), knows_missing=knows_missing)

    def with_samples(self, samples: list[int]) -> "Raster":
        """This raster, of which other samples are read."""
        raster = copy(self)
        raster.samples = samples
        return raster

    def pixels(self, box: Box | None = None) -> np.ndarray:
        """Values (n, m, C) of the bands; a masked array if data are missing."""
        box = box or self.rows(0, self.size[0])
        values = self._read(box, self.samples)
        reasons = []
        if self._may_be_nan:
            reasons.append(np.isnan(values))
        if self._knows_missing and NODATA in self.page.tags:
            reasons.append(self._is_nodata(values))
        if self._knows_missing and self.alpha is not None and self.alpha not in self.samples:
            reasons.append(self._read(box, [self.alpha]) == 0)
        if self._mask_page is not None:
            with self._lock, gdal_errors():
                reasons.append(self._mask.read(1, window=box.ranges)[:, :, None] == 0)
        values = values.astype(self.dtype, copy=False)
        if not any(reason.any() for reason in reasons):
            return values
        is_missing = np.array(np.broadcast_to(reduce(np.logical_or, reasons), values.shape))
        return np.ma.MaskedArray(values, is_missing)

    def _is_nodata(self, values: np.ndarray) -> np.ndarray:
        """Where values say that there are no data; -3.4e38, the lowest number of float32, is written in many ways."""
        with self._lock:
            nodata = self._data_set.nodata
        if nodata is None:
            return np.zeros(1, bool)
        if abs(nodata) < HUGE_NODATA:
            return values == nodata
        return np.isclose(values, nodata, rtol=HUGE_TOLERANCE, atol=0)

    def _read(self, box: Box, samples: Sequence[int]) -> np.ndarray:
        """A box (n, m, C) of some samples as they are stored."""
        shape = (box.bottom - box.top, box.right - box.left, len(samples))
        check_memory(COPIES * prod(shape) * self.stored_type.itemsize, "a part of the image")
        if self.page.is_contiguous:
            # mapped again for each window: pages of the file that were read count as memory
            window = self._mapped()[box.top : box.bottom, box.left : box.right]
            if list(samples) != list(range(self.page.samplesperpixel)):
                window = window.take(samples, axis=2)
            return window.astype(self.stored_type, order="C")
        check_memory(self._block_bytes, "a tile or strip of it")
        bands = [sample + 1 for sample in samples]
        with self._lock, gdal_errors():
            pixels = np.empty(shape, self._data_set.dtypes[0])
            self._data_set.read(bands, window=box.ranges, out=pixels.transpose(2, 0, 1))  # faster than planes
        return pixels

    def _mapped(self) -> np.ndarray:
        """(H, W, C) of a page that is not compressed, where it lies in the file."""
        dtype = self.stored_type.newbyteorder(self.page.parent.byteorder)
        bands = self.page.samplesperpixel
        is_separate = self.page.planarconfig == tifffile.PLANARCONFIG.SEPARATE
        shape = (bands, *self.size) if is_separate else (*self.size, bands)
        start = self.page.dataoffsets[0]
        if isinstance(self.file, bytes):
            pixels = np.frombuffer(self.file, dtype, prod(shape), start).reshape(shape)
        else:
            pixels = np.memmap(self.file, dtype, "r", start, shape)
        return np.moveaxis(pixels, 0, 2) if is_separate else pixels


class JoinedRasters(WindowedImage):
    """Rasters of one size, whose bands are those of one image."""

    def __init__(self, rasters: Sequence[Raster]) -> None:
        self.rasters = rasters
        first = rasters[0]
        for raster in rasters:
            if raster.size != first.size:
                sizes = " and ".join("{} x {}".format(*each.size) for each in (first, raster))
                raise ImageError(
                    f"{first.path} and {raster.path}: bands of {sizes} (height x width); store them at one size"
                )
        self.size = self.extent = first.size
        bands = sum(len(raster.samples) for raster in rasters)
        self.mode = f"{np.result_type(*[raster.dtype for raster in rasters])} x {bands}"
        self.may_lack_data = any(raster.may_lack_data for raster in rasters)
        self.decodes_windows = all(raster.decodes_windows for raster in rasters)

    def pixels(self, box: Box | None = None) -> np.ndarray:
        pixels = np.ma.concatenate([raster.pixels(box) for raster in self.rasters], axis=2)
        return pixels if np.ma.is_masked(pixels) else pixels.data


def open_bands(source: BandSource, stack: ExitStack) -> WindowedImage:
    """The raster of bands of files, open as long as `stack` is. Raises ImageError for bands that are not there."""
    rasters = []
    for path in source.paths:
        if not is_tiff(path):
            raise ImageError(f"{path}: is no TIFF, and --bands of train.py chooses bands of TIFFs; convert the image")
        rasters.append(_open_bands_of(Path(path), source.page, stack))
    if source.bands:
        chosen = _choose_bands(rasters, source)
        if len(rasters) == 1:
            return rasters[0].with_samples([sample for _, sample in chosen])
        rasters = [raster.with_samples([sample]) for raster, sample in chosen]
    return rasters[0] if len(rasters) == 1 else JoinedRasters(rasters)


def _open_bands_of(file: Path | bytes, number: int, stack: ExitStack, *, takes_palettes: bool = False) -> Raster:
    """The page of a TIFF whose samples are to be bands, whatever else they may be.

    Args:
        takes_palettes: whether the numbers of a page with a palette are meant, as in ImageJ's channels.
    """
    tiff = stack.enter_context(open_tiff(file))
    page = open_page(tiff, number)
    is_channel = takes_palettes and page.photometric == tifffile.PHOTOMETRIC.PALETTE
    if not (has_bands(page) or is_channel):
        raise ValueError("bands cannot be chosen of a TIFF of palettes, of single bits or of video colors")
    return Raster(file, page, stack, mask=_mask_page(tiff, page), knows_missing=True)


def _mask_page(tiff: tifffile.TiffFile, page: tifffile.TiffPage) -> tifffile.TiffPage | None:
    """The mask page of a page, as GDAL stores it: which pixels hold data."""
    if not has_place_tags(page):
        return None
    try:
        following = tiff.pages[page.index + 1].aspage()
    except IndexError:
        return None
    is_alike = (following.imagelength, following.imagewidth) == (page.imagelength, page.imagewidth)
    return following if following.is_mask and not following.is_reduced and is_alike else None


def _choose_bands(rasters: Sequence[Raster], source: BandSource) -> list[tuple[Raster, int]]:
    """The raster and the sample of each band that is asked for by name or number.

    A single band of a file is named after the file if it has no name or there are several files.
    """
    bands = []
    names = []
    for raster in rasters:
        for sample, name in enumerate(raster.names):
            bands.append((raster, sample))
            is_named_by_file = len(raster.names) == 1 and (len(rasters) > 1 or not name)
            names.append(raster.path.stem if is_named_by_file else name)
    chosen = []
    for band_name in source.bands:
        matches = band_indices(names, band_name)
        if not matches and band_name.isdecimal() and 1 <= int(band_name) <= len(bands):
            matches = [int(band_name) - 1]
        if len(matches) != 1:
            count = f"{len(matches)} that are" if matches else "none"
            known = listing([name or str(number) for number, name in enumerate(names, 1)], limit=8)
            raise ImageError(
                f"{source.paths[0]}: has {len(bands)} bands, {count} called {band_name}; its bands are {known}"
            )
        chosen.append(bands[matches[0]])
    return chosen


def band_indices(names: Sequence[str], band_name: str) -> list[int]:
    """The indices of the names that equal `band_name`; if there are none, of the names that hold it as a word.

    Such a name is T32TQM_20200101_B02_10m for the band b02.
    """
    equal_names = [index for index, name in enumerate(names) if name.casefold() == band_name.casefold()]
    word = re.compile(rf"(^|.*[_\-. ]){re.escape(band_name)}([_\-. ].*|$)", re.IGNORECASE)
    return equal_names or [index for index, name in enumerate(names) if word.fullmatch(name)]
