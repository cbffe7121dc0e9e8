"""Images too large for memory: windows of them, read from where they lie in the file."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from data_utils.image_io.formats import (
    TIFF_SUFFIXES,
    BandSource,
    ImageSource,
    PictureFile,
    RenderedMask,
    WindowSource,
    decode,
    image_errors,
    open_picture,
    page_file,
    source_files,
)
from data_utils.image_io.page_pixels import PagePixels
from data_utils.image_io.rasters import Raster, open_bands, open_raster
from data_utils.image_io.reader import decode_image, read_image, size_as_seen
from data_utils.image_io.tiff import has_plain_pixels, is_tiff
from runtime.documents import check_regular
from runtime.errors import ImageError
from unet.config import Preprocess

LARGE_IMAGE_PIXELS = 2**24  # pixels: a larger image is read in windows to take a crop
STRIP_PIXELS = 2**22  # pixels that are read together
WINDOWED_SUFFIXES = (".npy", *TIFF_SUFFIXES)


class WindowedImage(ABC):
    """A picture that is read a window at a time.

    Attributes:
        size: (H, W) of the picture.
        extent: how far (h, w) the windows reach: `size`, or less where a JPEG was decoded with less detail.
        decodes_windows: whether only the windows are decoded; else the whole picture is, when the first one is read.
        may_lack_data: whether some pixels may hold no data, and are masked.
    """

    size: tuple[int, int]
    extent: tuple[float, float]
    decodes_windows = True
    may_lack_data = False

    @abstractmethod
    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> Image.Image | np.ndarray:
        """Rows [top, bottom) and columns [left, right), as something that `read_image` and `read_mask` take.

        Args:
            right: None for all columns from `left` on.
        """

    def _columns(self, left: int, right: int | None) -> tuple[int, int]:
        """The columns [left, right) of a window whose `right` may be None."""
        if right is None:
            right = self.size[1]
        return left, right

    def draft_for(self, preprocess: Preprocess) -> "WindowedImage":
        """This picture with the detail that `preprocess` resizes from."""
        return self


class WindowedArray(WindowedImage):
    """Windows of an array (H, W) or (H, W, C), which may be mapped from a file."""

    def __init__(
        self, array: np.ndarray, size: tuple[int, int] | None = None, extent: tuple[float, float] | None = None
    ) -> None:
        self.array = array
        self.may_lack_data = isinstance(array, np.ma.MaskedArray)
        self.size = size or array.shape[:2]
        self.extent = extent or array.shape[:2]

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> np.ndarray:
        return self.array[top:bottom, left:right]


class WindowedTiff(WindowedImage):
    """Windows of a TIFF page of plain pixels."""

    def __init__(self, pixels: PagePixels) -> None:
        self.pixels = pixels
        self.size = self.extent = pixels.size
        self.samples = range(min(pixels.page.samplesperpixel, 3))  # without alpha

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> np.ndarray:
        with image_errors(str(self.pixels.file)):
            return self.pixels.read((top, bottom), self._columns(left, right), self.samples)


class WindowedRaster(WindowedImage):
    """Windows of a raster, masked where it holds no data."""

    def __init__(self, raster: Raster) -> None:
        self.raster = raster
        self.size = self.extent = raster.size
        self.decodes_windows = raster.decodes_windows
        self.may_lack_data = raster.may_lack_data

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> np.ndarray:
        with image_errors(str(self.raster.files[0].path)):
            return self.raster.read((top, bottom), self._columns(left, right))


class WindowedJpeg(WindowedImage):
    """Windows of a JPEG file, cut from a copy that is decoded, with the detail needed, for the first window."""

    decodes_windows = False

    def __init__(self, path: Path, size: tuple[int, int]) -> None:
        self.path = path
        self.size = self.extent = size

    @cached_property
    def _pixels(self) -> np.ndarray:
        return read_image(self.path, str(self.path))

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> np.ndarray:
        return self._pixels[top:bottom, left:right]

    def draft_for(self, preprocess: Preprocess) -> WindowedArray:
        return WindowedArray(*decode_image(self.path, str(self.path), draft_for=preprocess))


class WindowedPicture(WindowedImage):
    """Windows of a picture in any other format, cut from one decoded copy, made when it is needed."""

    decodes_windows = False

    def __init__(self, path: Path, picture: Image.Image, page: int) -> None:
        self.path = path
        self.picture = picture
        self.page = page

    @cached_property
    def _image(self) -> Image.Image:
        with image_errors(str(self.path)):
            self.picture.seek(self.page)
            decode(self.picture)
            ImageOps.exif_transpose(self.picture, in_place=True)
        return self.picture

    @property
    def size(self) -> tuple[int, int]:  # type: ignore[override]  # known once it is decoded
        return self._image.size[::-1]

    extent = size  # type: ignore[assignment]

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> Image.Image:
        left, right = self._columns(left, right)
        window = self._image.crop((left, top, right, bottom))
        window.format = self._image.format  # `read_mask` needs the format: the palette of a GIF means its colors
        return window


@contextmanager
def open_windowed_file(source: Path | BandSource | PictureFile, page: int = 0) -> Iterator[WindowedImage]:
    """Windows of a picture file: from the file itself for `.npy` and most TIFFs, else from one decoded copy.

    Raises ImageError for a source that cannot be read.
    """
    with ExitStack() as stack:
        with image_errors(str(_file_path(source))):
            image = _windowed_file(source, page, stack)
        yield image


def _file_path(source: Path | BandSource | PictureFile) -> Path:
    """The file of an image, or the first one of its bands."""
    return Path(source_files(source)[0])


def _windowed_file(source: Path | BandSource | PictureFile, page: int, stack: ExitStack) -> WindowedImage:
    """The image of `open_windowed_file`; its file stays open as long as `stack` is."""
    path = _file_path(source)
    if isinstance(source, BandSource):
        return WindowedRaster(open_bands(source, stack))
    if isinstance(source, PictureFile) and source.page is not None:
        page = source.page
    raster = open_raster(path, stack, page, reads_place=not isinstance(source, PictureFile))
    if raster is not None:
        return WindowedRaster(raster)
    check_regular(path)
    if path.suffix.lower() == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim not in (2, 3) or not array.size:
            raise ValueError(f"its shape is {array.shape}, not (H, W) or (H, W, C)")
        return WindowedArray(array)
    if is_tiff(path):
        tiff_page = stack.enter_context(tifffile.TiffFile(path)).pages[page].aspage()
        if has_plain_pixels(tiff_page):
            pixels = PagePixels(path, tiff_page, stack)
            if pixels.decodes_windows and pixels.has_codec:
                return WindowedTiff(pixels)
    picture = stack.enter_context(open_picture(path))
    if isinstance(picture, JpegImageFile):
        return WindowedJpeg(path, size_as_seen(picture))
    return WindowedPicture(path, picture, page)


def open_windowed(source: ImageSource) -> AbstractContextManager[WindowedImage]:
    """Windows of a file, a page, or bands; a rendered mask is rendered whole."""
    if isinstance(source, WindowSource):
        return source.open()
    if isinstance(source, RenderedMask):
        return nullcontext(WindowedArray(source.render()))
    if isinstance(source, BandSource | PictureFile):
        return open_windowed_file(source)
    file = page_file(source)
    assert file is not None
    return open_windowed_file(Path(file.path), file.page or 0)


@contextmanager
def open_if_large(source: ImageSource) -> Iterator[WindowedImage | None]:
    """Windows of a large image, or of a part of one; None for an image that must be decoded whole."""
    with ExitStack() as stack:
        image = None
        if isinstance(source, WindowSource) or _may_have_windows(source):
            with suppress(ImageError):  # the error is reported when the file is decoded
                image = stack.enter_context(open_windowed(source))
        if image is None or not image.decodes_windows:
            yield None
        elif isinstance(source, WindowSource) or np.prod(image.size) >= LARGE_IMAGE_PIXELS:
            yield image
        else:
            yield None


def _may_have_windows(source: ImageSource) -> bool:
    """Whether a source is a file of a format that may be read in windows."""
    files = source_files(source)
    return bool(files) and files[0].lower().endswith(WINDOWED_SUFFIXES)


def strips(image: WindowedImage) -> Iterator[tuple[int, Image.Image | np.ndarray]]:
    """(first row, rows) of all rows of a picture, some at a time."""
    height, width = image.size
    step = max(1, STRIP_PIXELS // width)
    for top in range(0, height, step):
        yield top, image.read(top, min(top + step, height))
