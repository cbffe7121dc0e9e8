"""Rasters: TIFFs with any number of bands, whose pixels may hold no data; read in windows."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tifffile

from data_utils.image_io.band_names import band_indices, stored_band_names
from data_utils.image_io.formats import BandSource, check_regular, open_picture
from data_utils.image_io.places import Place, has_place_tags, read_place
from data_utils.image_io.tiff import is_tiff
from data_utils.image_io.tiff_segments import Range, Segments, is_photograph, read_nodata, sample_index
from runtime.console import listing
from runtime.errors import ImageError

ALPHA_SAMPLES = (tifffile.EXTRASAMPLE.ASSOCALPHA, tifffile.EXTRASAMPLE.UNASSALPHA)
COLORS = (tifffile.PHOTOMETRIC.MINISBLACK, tifffile.PHOTOMETRIC.RGB)
PILLOW_SAMPLES = (3, 4)  # how many samples pictures in color have
# the types that Pillow converts pixel types to, so that a file is read alike with and without a place
PILLOW_TYPES = {"int8": "int32", "int16": "int32", "float16": "float32", "float64": "float32"}


class RasterFile:
    """A TIFF page whose samples are bands.

    Attributes:
        size: (H, W).
        nodata: the value of pixels without data; None if there is none.
        names: the names of the bands; empty texts where they have none.
        place: its place in the world; None if the file has none.
        alpha: the sample that says how opaque pixels are; None if there is none.
    """

    def __init__(self, path: Path, page: tifffile.TiffPage, mask: tifffile.TiffPage | None) -> None:
        self.path = path
        self.nodata = read_nodata(page)
        self.pixels = Segments(path, page, fill_value=0 if self.nodata is None else self.nodata)
        self.mask = None if mask is None else Segments(path, mask, fill_value=0)
        self.size = self.pixels.size
        self.sample_count = self.pixels.sample_count
        self.place = read_place(page)
        self.names = stored_band_names(page, self.sample_count)
        self.alpha = _alpha(page)

    @property
    def dtype(self) -> np.dtype:
        """The type in which its pixels are read."""
        stored_type = self.pixels.dtype
        return np.dtype(PILLOW_TYPES.get(str(stored_type), stored_type))

    @property
    def may_lack_data(self) -> bool:
        """Whether some pixels may hold no data."""
        has_value = self.nodata is not None or self.pixels.dtype.kind == "f"
        return has_value or self.alpha is not None or self.mask is not None

    def read(self, rows: Range, columns: Range, samples: Sequence[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """Values (n, m, C) of some bands, and a mask of that shape, true where data are missing; None if none are."""
        values = self.pixels.read(rows, columns, samples)
        reasons = []
        if values.dtype.kind == "f":
            reasons.append(np.isnan(values))
        if self.nodata is not None:
            reasons.append(values == self.nodata)
        outside = self._outside(rows, columns, samples)
        if outside is not None:
            reasons.append(np.broadcast_to(outside, values.shape))
        is_missing = None
        if any(reason.any() for reason in reasons):
            is_missing = reduce(np.logical_or, reasons)
        return values.astype(self.dtype, copy=False), is_missing

    def _outside(self, rows: Range, columns: Range, samples: Sequence[int]) -> np.ndarray | None:
        """Where alpha or the file's mask marks no data, (n, m, 1) bool; None if the file has neither."""
        if self.alpha is not None and self.alpha not in samples:
            return self.pixels.read(rows, columns, (self.alpha,)) == 0
        if self.mask is not None:
            return self.mask.read(rows, columns, (0,)) == 0
        return None


class Band(NamedTuple):
    """A band of a raster: a sample of one of its files, and its name."""

    file_index: int
    sample: int
    name: str


class Raster:
    """Bands of one file, or of several files of one size; arguments as the attributes.

    Attributes:
        files: all files.
        bands: the bands that are read.
    """

    def __init__(self, files: Sequence[RasterFile], bands: Sequence[Band]) -> None:
        self.files = files
        self.bands = bands

    @property
    def size(self) -> tuple[int, int]:
        """(H, W)."""
        return self.files[0].size

    @property
    def place(self) -> Place | None:
        """The place of the raster in the world."""
        return self.files[0].place

    @property
    def dtype(self) -> np.dtype:
        """The type in which its pixels are read."""
        return np.result_type(*[file.dtype for file in self._used_files()])

    @property
    def may_lack_data(self) -> bool:
        """Whether some pixels may hold no data."""
        return any(file.may_lack_data for file in self._used_files())

    @property
    def decodes_windows(self) -> bool:
        """Whether windows can be read without decoding most of the files."""
        return all(file.pixels.decodes_windows for file in self._used_files())

    def _used_files(self) -> list[RasterFile]:
        """The files of the bands that are read."""
        file_indices = {band.file_index for band in self.bands}
        return [file for index, file in enumerate(self.files) if index in file_indices]

    def read(self, rows: Range, columns: Range) -> np.ndarray:
        """A window (n, m, C), masked where bands hold no data, if some do."""
        if len(self.files) == 1:
            values, is_missing = self.files[0].read(rows, columns, [band.sample for band in self.bands])
            return values if is_missing is None else np.ma.MaskedArray(values, np.array(is_missing))
        shape = (rows[1] - rows[0], columns[1] - columns[0], len(self.bands))
        values = np.empty(shape, self.dtype)
        is_missing = np.zeros(shape, bool)
        for number, file in enumerate(self.files):
            channels = [channel for channel, band in enumerate(self.bands) if band.file_index == number]
            if not channels:
                continue
            samples = [self.bands[channel].sample for channel in channels]
            file_values, file_is_missing = file.read(rows, columns, samples)
            values[:, :, sample_index(channels)] = file_values
            if file_is_missing is not None:
                is_missing[:, :, sample_index(channels)] = file_is_missing
        if is_missing.any():
            return np.ma.MaskedArray(values, is_missing)
        return values

    def whole(self) -> np.ndarray:
        """The whole raster, as `read` gives a window."""
        height, width = self.size
        return self.read((0, height), (0, width))


def open_raster(path: str | Path, stack: ExitStack, page: int = 0) -> Raster | None:
    """The raster of a file, open as long as `stack` is; None for a file that is read as a picture.

    A TIFF is a raster if it has a place, or if Pillow does not open it. Any other TIFF is read as Pillow reads it, even
    if Pillow reads only the first of several bands.
    """
    if not is_tiff(path):
        return None
    file = _open_file(Path(path), page, stack, is_chosen=False)
    return None if file is None else Raster([file], _visible_bands([file]))


def open_bands(source: BandSource, stack: ExitStack) -> Raster:
    """The raster of bands of files, open as long as `stack` is. Raises ImageError for bands that are not there."""
    files = []
    for path in source.paths:
        file = _open_file(Path(path), source.page, stack, is_chosen=True)
        assert file is not None
        files.append(file)
    first = files[0]
    for file in files:
        if file.size != first.size:
            sizes = f"{first.size[0]} x {first.size[1]} and {file.size[0]} x {file.size[1]}"
            raise ImageError(f"{first.path} and {file.path}: bands of {sizes} (height x width); store them at one size")
    bands = _choose(_all_bands(files), source) if source.bands else _visible_bands(files)
    return Raster(files, bands)


def _visible_bands(files: Sequence[RasterFile]) -> list[Band]:
    """All bands but alpha, which says where there is data."""
    return [band for band in _all_bands(files) if band.sample != files[band.file_index].alpha]


def _open_file(path: Path, number: int, stack: ExitStack, *, is_chosen: bool) -> RasterFile | None:
    """The page of a TIFF as a raster; None if it is a picture."""
    check_regular(path)
    if not is_tiff(path):
        raise ImageError(f"{path}: --bands chooses bands of TIFF files; leave it out, or convert the image")
    try:
        tiff = stack.enter_context(tifffile.TiffFile(path))
        page = tiff.pages[number].aspage()
        is_raster = _has_bands(page) and (is_chosen or has_place_tags(page) or _is_no_picture(path, page))
    except Exception:
        if is_chosen:
            raise
        return None  # Pillow reads more of a damaged file than tifffile, and reports the damage
    if not is_raster:
        if is_chosen:
            raise ImageError(f"{path}: bands cannot be chosen of a TIFF of palettes, of single bits or of video colors")
        return None
    return RasterFile(path, page, _mask_page(tiff, page))


def _has_bands(page: tifffile.TiffPage) -> bool:
    """Whether the samples of a page are numbers that can be bands."""
    is_upright = page.tags.valueof("Orientation", default=1) == 1
    is_number = page.dtype is not None and np.dtype(page.dtype).kind in "uif" and page.bitspersample % 8 == 0
    is_color = page.photometric in COLORS or is_photograph(page)
    return is_upright and is_number and is_color and page.imagedepth == 1


def _is_no_picture(path: Path, page: tifffile.TiffPage) -> bool:
    """Whether a page without a place has more bands or other numbers than Pillow takes for a picture."""
    if page.samplesperpixel == 1 or (page.samplesperpixel == 2 and _alpha(page) is not None):
        return False
    is_rgb = page.photometric == tifffile.PHOTOMETRIC.RGB
    if is_rgb and page.samplesperpixel in PILLOW_SAMPLES and str(page.dtype) in ("uint8", "uint16"):
        return False
    try:
        with open_picture(path) as picture:
            picture.seek(page.index)
    except Exception:  # Pillow raises many kinds of errors
        return True
    return False


def _mask_page(tiff: tifffile.TiffFile, page: tifffile.TiffPage) -> tifffile.TiffPage | None:
    """The mask page of a page, as GDAL stores it: which pixels hold data."""
    if not has_place_tags(page):
        return None
    try:
        following = tiff.pages[page.index + 1].aspage()
    except IndexError:
        return None
    is_mask = following.is_mask and not following.is_reduced
    if is_mask and (following.imagelength, following.imagewidth) == (page.imagelength, page.imagewidth):
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
    for number, file in enumerate(files):
        for sample, name in enumerate(file.names):
            if file.sample_count == 1 and (len(files) > 1 or not name):
                name = file.path.stem
            bands.append(Band(number, sample, name))
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
            count = "none" if not matches else f"{len(matches)} that are"
            raise ImageError(
                f"{source.paths[0]}: has {len(bands)} bands, {count} called {band_name}; its bands are"
                f" {listing(names, limit=8)}"
            )
        selected_bands.append(bands[matches[0]])
    return selected_bands
