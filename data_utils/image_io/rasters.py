"""Rasters: TIFFs with any number of bands, whose pixels may hold no data; GDAL reads them in windows."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce
from io import BytesIO
from math import prod
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import tifffile

from data_utils.image_io.formats import BandSource, PageFile, check_memory, image_errors
from data_utils.image_io.gdal import gdal_errors, open_directory
from data_utils.image_io.tiff import (
    check_segments,
    has_alpha,
    has_bands,
    has_place_tags,
    has_plain_pixels,
    is_tiff,
    open_page,
    page_size,
    reads_right,
)
from data_utils.image_io.windowed_image import WindowedImage
from runtime.console import listing
from runtime.documents import check_regular
from runtime.errors import ImageError

HUGE_NODATA = 1e30
HUGE_TOLERANCE = 0.01
GDAL_TAGS = (42112, 42113)  # of GDAL: the names of bands, and the value of pixels without data
MOST_BLOCK_BYTES = 2**28  # a compressed strip larger than this is not read for a window
# the types that Pillow converts pixel types to, so that a file is read alike with and without a place
PILLOW_TYPES = {"int8": "int32", "int16": "int32", "float16": "float32", "float64": "float32"}

Range = tuple[int, int]  # first and last pixel along a side, the last one left out


class RasterFile:
    """A TIFF page whose samples are bands, open as long as `stack` is.

    Args:
        file: its file, or the bytes of it.
        mask: the page that says which pixels hold data.
        knows_missing: whether pixels may hold no data; else all values are numbers, as in grey pictures.

    Attributes:
        size: (H, W).
        dtype: the type in which the pixels are read.
        names: the names of the bands; empty texts where they have none.
        alpha: the sample that says how opaque pixels are; None if there is none.
        may_lack_data: whether some pixels may hold no data.
        decodes_windows: whether a window can be read without decoding most of the page.
    """

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
        self.size = page_size(page)
        check_segments(page)
        stored_type = np.dtype(page.dtype)
        self.dtype = np.dtype(PILLOW_TYPES.get(str(stored_type), stored_type))
        self.names = [""] * int(page.samplesperpixel)
        self.alpha: int | None = None
        self.nodata: float | None = None
        self._block_bytes = 0
        self._lock = Lock()  # threads must not read one data set at the same time
        is_described = any(code in page.tags for code in GDAL_TAGS) or has_alpha(page)
        if is_described or not page.is_contiguous:  # opening takes longer than reading a small image
            self._data_set = open_directory(file, page.index, stack)
            self.names = [name or "" for name in self._data_set.descriptions]
            colors = [color.name for color in self._data_set.colorinterp]
            self.alpha = colors.index("alpha") if "alpha" in colors else None
            self.nodata = self._data_set.nodata if knows_missing else None
            self._block_bytes = prod(self._data_set.block_shapes[0]) * stored_type.itemsize
            if page.planarconfig != tifffile.PLANARCONFIG.SEPARATE:
                self._block_bytes *= len(self.names)
        self._mask = None if mask is None else open_directory(file, mask.index, stack)
        self.may_be_nan = knows_missing and stored_type.kind == "f"
        has_value = self.nodata is not None or self.may_be_nan
        self.may_lack_data = has_value or self.alpha is not None or self._mask is not None
        self.decodes_windows = page.is_contiguous or self._block_bytes <= MOST_BLOCK_BYTES

    def read(self, rows: Range, columns: Range, samples: Sequence[int]) -> np.ndarray:
        """Values (n, m, C) of some bands; a masked array if data are missing."""
        values = self._read(rows, columns, samples)
        reasons = []
        if self.may_be_nan:
            reasons.append(np.isnan(values))
        if self.nodata is not None:
            reasons.append(self._is_nodata(values))
        if self.alpha is not None and self.alpha not in samples:
            reasons.append(self._read(rows, columns, (self.alpha,)) == 0)
        elif self._mask is not None:
            with self._lock, gdal_errors("{}"):
                reasons.append(self._mask.read(1, window=(rows, columns))[:, :, None] == 0)
        values = values.astype(self.dtype, copy=False)
        if not any(reason.any() for reason in reasons):
            return values
        is_missing = np.array(np.broadcast_to(reduce(np.logical_or, reasons), values.shape))
        return np.ma.MaskedArray(values, is_missing)

    def _is_nodata(self, values: np.ndarray) -> np.ndarray:
        """Where values say that there are no data; -3.4e38, the lowest number of float32, is written in many ways."""
        assert self.nodata is not None
        if abs(self.nodata) < HUGE_NODATA:
            return values == self.nodata
        return np.isclose(values, self.nodata, rtol=HUGE_TOLERANCE, atol=0)

    def _read(self, rows: Range, columns: Range, samples: Sequence[int]) -> np.ndarray:
        """A window (n, m, C) of some samples as they are stored."""
        window_pixels = (rows[1] - rows[0]) * (columns[1] - columns[0])
        check_memory(window_pixels * len(samples) * np.dtype(self.page.dtype).itemsize, "a part of the image")
        if self.page.is_contiguous:
            # mapped again for each window: pages of the file that were read count as memory
            window = self._mapped()[slice(*rows), slice(*columns)]
            if list(samples) != list(range(len(self.names))):
                window = window.take(samples, axis=2)
            return window.astype(self.page.dtype, order="C")
        check_memory(self._block_bytes, "a tile or strip of it")
        with self._lock, gdal_errors("{}"):
            planes = self._data_set.read([sample + 1 for sample in samples], window=(rows, columns))
        return np.ascontiguousarray(np.moveaxis(planes, 0, 2))

    def _mapped(self) -> np.ndarray:
        """(H, W, C) of a page that is not compressed, where it lies in the file."""
        dtype = np.dtype(self.page.dtype).newbyteorder(self.page.parent.byteorder)
        samples = len(self.names)
        is_separate = self.page.planarconfig == tifffile.PLANARCONFIG.SEPARATE
        shape = (samples, *self.size) if is_separate else (*self.size, samples)
        start = self.page.dataoffsets[0]
        if isinstance(self.file, bytes):
            pixels = np.frombuffer(self.file, dtype, prod(shape), start).reshape(shape)
        else:
            pixels = np.memmap(self.file, dtype, "r", start, shape)
        return np.moveaxis(pixels, 0, 2) if is_separate else pixels


class Band(NamedTuple):
    """A band of a raster: a sample of one of its files, and its name."""

    file: RasterFile
    sample: int
    name: str


class Raster(WindowedImage):
    """Bands of one file, or of several files of one size; windows are masked where bands hold no data.

    Attributes:
        bands: the bands that are read.
        dtype: the type in which the pixels are read.
    """

    def __init__(self, bands: Sequence[Band]) -> None:
        self.bands = bands
        self.files = list(dict.fromkeys(band.file for band in bands))
        self.size = self.extent = self.files[0].size
        self.dtype = np.result_type(*[file.dtype for file in self.files])
        self.mode = f"{self.dtype} x {len(bands)}"
        self.may_lack_data = any(file.may_lack_data for file in self.files)
        self.decodes_windows = all(file.decodes_windows for file in self.files)

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> np.ndarray:
        with image_errors(str(self.files[0].path)):
            return self._read((top, bottom), self._columns(left, right))

    def pixels(self) -> np.ndarray:
        height, width = self.size
        return self._read((0, height), (0, width))

    def _read(self, rows: Range, columns: Range) -> np.ndarray:
        parts = []
        channels: list[int] = []
        for file in self.files:
            own_channels = [channel for channel, band in enumerate(self.bands) if band.file is file]
            parts.append(file.read(rows, columns, [self.bands[channel].sample for channel in own_channels]))
            channels += own_channels
        if len(parts) == 1:
            return parts[0]
        pixels = np.ma.concatenate(parts, axis=2)[:, :, np.argsort(channels)]
        return pixels if np.ma.is_masked(pixels) else pixels.data


def open_raster(file: PageFile, name: str, stack: ExitStack) -> Raster | None:
    """The raster of a file, open as long as `stack` is; None for a file that is read as a picture.

    A TIFF is a raster if it has a place that is read, if Pillow does not read it right, or if its pages are channels.
    """
    if not is_tiff(file.path):
        return None
    path = file.path if isinstance(file.path, bytes) else Path(file.path)
    if file.more_channels:
        pages = (file.page or 0, *file.more_channels)
        return Raster(_visible_bands([_open_bands_of(path, page, stack) for page in pages]))
    try:
        tiff = _open_tiff(path, stack)
    except Exception:
        return None  # Pillow reads more of a damaged file than tifffile, and reports the damage
    page = open_page(tiff, file.page or 0)
    has_place = file.reads_place and has_place_tags(page)
    if reads_right(page) and not (has_place and has_bands(page)):
        check_segments(page)
        return None
    if not has_bands(page):
        raise ValueError(f"pixels of type {page.dtype} are read upright, and not if they are complex; store them so")
    knows_missing = has_place or page.samplesperpixel > 1
    return Raster(
        _visible_bands([RasterFile(path, page, stack, mask=_mask_page(tiff, page), knows_missing=knows_missing)])
    )


def open_plain_page(file: Path, page: int, stack: ExitStack) -> Raster | None:
    """The colors of a page that is read as a picture; None if windows of it cannot be read, or are no parts of it."""
    tiff_page = stack.enter_context(tifffile.TiffFile(file)).pages[page].aspage()
    if not has_plain_pixels(tiff_page):
        return None
    try:
        picture = RasterFile(file, tiff_page, stack)
    except Exception:  # rasterio may be missing, or the file damaged, which another reader reports
        return None
    picture.alpha = None
    picture.may_lack_data = False
    raster = Raster(_all_bands([picture])[:3])
    return raster if raster.decodes_windows else None


def open_bands(source: BandSource, stack: ExitStack) -> Raster:
    """The raster of bands of files, open as long as `stack` is. Raises ImageError for bands that are not there."""
    files = []
    for path in source.paths:
        if not is_tiff(path):
            raise ImageError(f"{path}: --bands chooses bands of TIFF files; leave it out, or convert the image")
        files.append(_open_bands_of(Path(path), source.page, stack))
    first = files[0]
    for file in files:
        if file.size != first.size:
            sizes = " and ".join("{} x {}".format(*each.size) for each in (first, file))
            raise ImageError(f"{first.path} and {file.path}: bands of {sizes} (height x width); store them at one size")
    if source.bands:
        return Raster(_choose(_all_bands(files), source))
    return Raster(_visible_bands(files))


def _open_tiff(file: Path | bytes, stack: ExitStack) -> tifffile.TiffFile:
    """A TIFF whose first page can be read."""
    if isinstance(file, Path):
        check_regular(file)
    tiff = stack.enter_context(tifffile.TiffFile(BytesIO(file) if isinstance(file, bytes) else file))
    tiff.pages[0].aspage()
    return tiff


def _open_bands_of(file: Path | bytes, number: int, stack: ExitStack) -> RasterFile:
    """The page of a TIFF whose samples are to be bands, whatever else they may be."""
    tiff = _open_tiff(file, stack)
    page = open_page(tiff, number)
    if not has_bands(page):
        raise ValueError("bands cannot be chosen of a TIFF of palettes, of single bits or of video colors")
    return RasterFile(file, page, stack, mask=_mask_page(tiff, page), knows_missing=True)


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


def _visible_bands(files: Sequence[RasterFile]) -> list[Band]:
    """All bands but alpha, which says where there is data."""
    return [band for band in _all_bands(files) if band.sample != band.file.alpha]


def _all_bands(files: Sequence[RasterFile]) -> list[Band]:
    """All bands; a single band of a file is named after the file if it has no name or there are several files."""
    bands = []
    for file in files:
        for sample, name in enumerate(file.names):
            if len(file.names) == 1 and (len(files) > 1 or not name):
                name = file.path.stem
            bands.append(Band(file, sample, name))
    return bands


def _choose(bands: Sequence[Band], source: BandSource) -> list[Band]:
    """The bands that are asked for by name or number."""
    selected_bands = []
    for band_name in source.bands:
        matches = band_indices([band.name for band in bands], band_name)
        if not matches and band_name.isdecimal() and 1 <= int(band_name) <= len(bands):
            matches = [int(band_name) - 1]
        if len(matches) != 1:
            names = [band.name or str(number) for number, band in enumerate(bands, 1)]
            count = f"{len(matches)} that are" if matches else "none"
            raise ImageError(
                f"{source.paths[0]}: has {len(bands)} bands, {count} called {band_name}; its bands are"
                f" {listing(names, limit=8)}"
            )
        selected_bands.append(bands[matches[0]])
    return selected_bands


def band_indices(names: Sequence[str], band_name: str) -> list[int]:
    """The indices of the names that equal `band_name`; if there are none, of the names that hold it as a word.

    Such a name is T32TQM_20200101_B02_10m for the band b02.
    """
    equal_names = [index for index, name in enumerate(names) if name.casefold() == band_name.casefold()]
    word = re.compile(rf"(^|.*[_\-. ]){re.escape(band_name)}([_\-. ].*|$)", re.IGNORECASE)
    return equal_names or [index for index, name in enumerate(names) if word.fullmatch(name)]
