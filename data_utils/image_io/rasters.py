"""Rasters: TIFFs with any number of bands, whose pixels may hold no data; read in windows."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tifffile

from data_utils.image_io.band_names import band_indices, stored_band_names
from data_utils.image_io.formats import BandSource, PageFile, image_errors
from data_utils.image_io.page_pixels import PagePixels, Range, is_photograph
from data_utils.image_io.pictures import open_picture
from data_utils.image_io.places import NODATA, PLACE_TAGS, has_place_tags, place_tags
from data_utils.image_io.tiff import (
    ALPHA_SAMPLES,
    MINISBLACK,
    check_segments,
    has_plain_pixels,
    is_tiff,
    open_page,
    reads_right,
)
from data_utils.image_io.windowed_image import WindowedImage
from runtime.console import listing
from runtime.documents import check_regular
from runtime.errors import ImageError

HUGE_NODATA = 1e30
HUGE_TOLERANCE = 0.01
COLORS = (tifffile.PHOTOMETRIC.MINISBLACK, tifffile.PHOTOMETRIC.RGB)
# the types that Pillow converts pixel types to, so that a file is read alike with and without a place
PILLOW_TYPES = {"int8": "int32", "int16": "int32", "float16": "float32", "float64": "float32"}


class RasterFile:
    """A TIFF page whose samples are bands, open as long as `stack` is.

    Args:
        file: its file, or the bytes of it.
        mask: the page that says which pixels hold data.
        knows_missing: whether pixels may hold no data; else all values are numbers, as in grey pictures.

    Attributes:
        nodata: the value of pixels without data; None if there is none.
        names: the names of the bands; empty texts where they have none.
        alpha: the sample that says how opaque pixels are; None if there is none.
        dtype: the type in which the pixels are read.
        may_lack_data: whether some pixels may hold no data.
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
        self.path = Path("image") if isinstance(file, bytes) else file
        self.pixels = PagePixels(file, page, stack)
        self.mask = None if mask is None else PagePixels(file, mask, stack)
        self.names = stored_band_names(page, int(page.samplesperpixel))
        self.alpha = _alpha(page)
        self.nodata = read_nodata(page) if knows_missing else None
        stored_type = self.pixels.dtype
        self.dtype = np.dtype(PILLOW_TYPES.get(str(stored_type), stored_type))
        self.may_be_nan = knows_missing and stored_type.kind == "f"
        has_value = self.nodata is not None or self.may_be_nan
        self.may_lack_data = has_value or self.alpha is not None or self.mask is not None

    def read(self, rows: Range, columns: Range, samples: Sequence[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """Values (n, m, C) of some bands, and a mask of that shape, true where data are missing; None if none are."""
        values = self.pixels.read(rows, columns, samples)
        reasons = []
        if self.may_be_nan:
            reasons.append(np.isnan(values))
        if self.nodata is not None:
            reasons.append(self._is_nodata(values))
        if self.alpha is not None and self.alpha not in samples:
            reasons.append(self.pixels.read(rows, columns, (self.alpha,)) == 0)
        elif self.mask is not None:
            reasons.append(self.mask.read(rows, columns, (0,)) == 0)
        is_missing = None
        if any(reason.any() for reason in reasons):
            is_missing = np.array(np.broadcast_to(reduce(np.logical_or, reasons), values.shape))
        return values.astype(self.dtype, copy=False), is_missing

    def _is_nodata(self, values: np.ndarray) -> np.ndarray:
        """Where values say that there are no data; -3.4e38, the lowest number of float32, is written in many ways."""
        assert self.nodata is not None
        if abs(self.nodata) < HUGE_NODATA:
            return values == self.nodata
        return np.isclose(values, self.nodata, rtol=HUGE_TOLERANCE, atol=0)


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
        self.size = self.extent = self.files[0].pixels.size
        self.dtype = np.result_type(*[file.dtype for file in self.files])
        self.mode = f"{self.dtype} x {len(bands)}"
        self.may_lack_data = any(file.may_lack_data for file in self.files)
        self.decodes_windows = all(file.pixels.decodes_windows for file in self.files)

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> np.ndarray:
        with image_errors(str(self.files[0].path)):
            return self._read((top, bottom), self._columns(left, right))

    def pixels(self) -> np.ndarray:
        height, width = self.size
        return self._read((0, height), (0, width))

    def _read(self, rows: Range, columns: Range) -> np.ndarray:
        if len(self.files) == 1:
            samples = [band.sample for band in self.bands]
            values, is_missing = self.files[0].read(rows, columns, samples)
            if is_missing is None:
                return values
            return np.ma.MaskedArray(values, is_missing)
        shape = (rows[1] - rows[0], columns[1] - columns[0], len(self.bands))
        pixels = np.empty(shape, self.dtype)
        lacks_data = np.zeros(shape, bool)
        for file in self.files:
            channels = [channel for channel, band in enumerate(self.bands) if band.file is file]
            samples = [self.bands[channel].sample for channel in channels]
            values, is_missing = file.read(rows, columns, samples)
            pixels[:, :, channels] = values
            if is_missing is not None:
                lacks_data[:, :, channels] = is_missing
        if not lacks_data.any():
            return pixels
        return np.ma.MaskedArray(pixels, lacks_data)


def open_raster(file: PageFile, name: str, stack: ExitStack) -> Raster | None:
    """The raster of a file, open as long as `stack` is; None for a file that is read as a picture.

    A TIFF is a raster if it has a place that is read, if Pillow does not read it right, or if its pages are channels.
    """
    if not is_tiff(file.path):
        return None
    path = file.path if isinstance(file.path, bytes) else Path(file.path)
    if file.more_channels:
        pages = (file.page or 0, *file.more_channels)
        channels = [_open_file(path, page, stack, is_chosen=True) for page in pages]
        return Raster(_visible_bands([channel for channel in channels if channel is not None]))
    raster = _open_file(path, file.page or 0, stack, is_chosen=False, reads_place=file.reads_place)
    if raster is None:
        return None
    return Raster(_visible_bands([raster]))


def open_plain_page(file: Path, page: int, stack: ExitStack) -> Raster | None:
    """The colors of a page that is read as a picture; None if windows of it cannot be read, or are no parts of it."""
    tiff_page = stack.enter_context(tifffile.TiffFile(file)).pages[page].aspage()
    if not has_plain_pixels(tiff_page):
        return None
    picture = RasterFile(file, tiff_page, stack)
    picture.alpha = None
    picture.may_lack_data = False
    raster = Raster(_all_bands([picture])[:3])
    if raster.decodes_windows and picture.pixels.has_codec:
        return raster
    return None


def open_bands(source: BandSource, stack: ExitStack) -> Raster:
    """The raster of bands of files, open as long as `stack` is. Raises ImageError for bands that are not there."""
    files = []
    for path in source.paths:
        if not is_tiff(path):
            raise ImageError(f"{path}: --bands chooses bands of TIFF files; leave it out, or convert the image")
        file = _open_file(Path(path), source.page, stack, is_chosen=True)
        assert file is not None
        files.append(file)
    first = files[0]
    for file in files:
        if file.pixels.size != first.pixels.size:
            sizes = " and ".join("{} x {}".format(*each.pixels.size) for each in (first, file))
            raise ImageError(f"{first.path} and {file.path}: bands of {sizes} (height x width); store them at one size")
    if source.bands:
        return Raster(_choose(_all_bands(files), source))
    return Raster(_visible_bands(files))


def page_as_file(path: Path, number: int, more_channels: Sequence[int] = ()) -> bytes:
    """A page of a TIFF as a file of its own, with all its samples, its place and its value without data.

    Args:
        more_channels: further pages, whose samples belong to the same image.
    """
    check_regular(path)
    content = BytesIO()
    with ExitStack() as stack:
        if more_channels:
            image = open_raster(PageFile(path, number, more_channels=tuple(more_channels)), str(path), stack)
            assert image is not None
            tifffile.imwrite(content, image.pixels(), photometric=MINISBLACK, planarconfig="contig", compression="zlib")
            return content.getvalue()
        page = open_page(stack.enter_context(tifffile.TiffFile(path)), number)
        if not _has_bands(page):  # Pillow keeps palettes and turned pictures
            with open_picture(path) as picture:
                picture.seek(number)
                picture.save(content, "TIFF", compression="tiff_adobe_deflate")
            return content.getvalue()
        file = RasterFile(path, page, stack)
        height, width = file.pixels.size
        pixels = file.pixels.read((0, height), (0, width), range(len(file.names)))
        layout: str | None = "contig"
        if len(file.names) == 1:
            pixels = pixels[:, :, 0]
            layout = None
        tifffile.imwrite(
            content,
            pixels,
            photometric=page.photometric,
            planarconfig=layout,
            extrasamples=page.extrasamples,
            compression="zlib",
            metadata=None,
            extratags=place_tags(page, (*PLACE_TAGS, NODATA)),
        )
    return content.getvalue()


def _visible_bands(files: Sequence[RasterFile]) -> list[Band]:
    """All bands but alpha, which says where there is data."""
    return [band for band in _all_bands(files) if band.sample != band.file.alpha]


def _open_file(
    file: Path | bytes, number: int, stack: ExitStack, *, is_chosen: bool, reads_place: bool = True
) -> RasterFile | None:
    """The page of a TIFF as a raster; None if it is a picture."""
    if isinstance(file, Path):
        check_regular(file)
    try:
        content = BytesIO(file) if isinstance(file, bytes) else file
        tiff = stack.enter_context(tifffile.TiffFile(content))
        tiff.pages[0].aspage()
    except Exception:
        if is_chosen:
            raise
        return None  # Pillow reads more of a damaged file than tifffile, and reports the damage
    page = open_page(tiff, number)
    has_place = reads_place and has_place_tags(page)
    if reads_right(page) and not is_chosen and not (has_place and _has_bands(page)):
        check_segments(page)
        return None
    if not _has_bands(page):
        if is_chosen:
            raise ValueError("bands cannot be chosen of a TIFF of palettes, of single bits or of video colors")
        raise ValueError(f"pixels of type {page.dtype} are read upright, and not if they are complex; store them so")
    knows_missing = is_chosen or has_place or page.samplesperpixel > 1
    return RasterFile(file, page, stack, mask=_mask_page(tiff, page), knows_missing=knows_missing)


def _has_bands(page: tifffile.TiffPage) -> bool:
    """Whether the samples of a page are numbers that can be bands."""
    is_upright = page.tags.valueof("Orientation", default=1) == 1
    is_number = page.dtype is not None and np.dtype(page.dtype).kind in "uif"
    is_plain = page.photometric in COLORS and page.bitspersample % 8 == 0
    is_color = is_plain or is_photograph(page) or not reads_right(page)
    return is_upright and is_number and is_color and page.imagedepth == 1


def _mask_page(tiff: tifffile.TiffFile, page: tifffile.TiffPage) -> tifffile.TiffPage | None:
    """The mask page of a page, as GDAL stores it: which pixels hold data."""
    if not has_place_tags(page):
        return None
    try:
        following = tiff.pages[page.index + 1].aspage()
    except IndexError:
        return None
    is_mask = following.is_mask and not following.is_reduced
    is_alike = (following.imagelength, following.imagewidth) == (page.imagelength, page.imagewidth)
    if is_mask and is_alike:
        return following
    return None


def _alpha(page: tifffile.TiffPage) -> int | None:
    """The sample that says how opaque a pixel is."""
    extras = tuple(page.extrasamples)
    first = page.samplesperpixel - len(extras)
    for number, kind in enumerate(extras):
        if kind in ALPHA_SAMPLES:
            return first + number
    return None


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
            count = "none"
            if matches:
                count = f"{len(matches)} that are"
            raise ImageError(
                f"{source.paths[0]}: has {len(bands)} bands, {count} called {band_name}; its bands are"
                f" {listing(names, limit=8)}"
            )
        selected_bands.append(bands[matches[0]])
    return selected_bands


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
    if value == np.floor(value) and limits.min <= value <= limits.max:
        return int(value)
    return None
