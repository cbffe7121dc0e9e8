"""Images too large for memory: windows of them, read from where they lie in the file."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from data_utils.image_io.formats import TIFF_SUFFIXES, ImageSource, WindowSource, image_errors, source_files
from data_utils.image_io.rasters import Raster, open_plain_page
from data_utils.image_io.reader import decode_image, header_size, open_source, upright
from data_utils.image_io.windowed_image import WindowedArray, WindowedImage
from runtime.errors import ImageError
from unet.config import Preprocess

LARGE_IMAGE_PIXELS = 2**24  # pixels: a larger image is read in windows to take a crop
STRIP_PIXELS = 2**22  # pixels that are read together
WINDOWED_SUFFIXES = (".npy", *TIFF_SUFFIXES)


class WindowedPicture(WindowedImage):
    """Windows of a picture in any other format, cut from one copy, which is decoded for the first window."""

    decodes_windows = False

    def __init__(self, picture: Image.Image, source: ImageSource, name: str) -> None:
        self.picture = picture
        self.source = source
        self.name = name
        self.size = self.extent = header_size(picture)

    @cached_property
    def _image(self) -> Image.Image:
        with image_errors(self.name):
            return upright(self.picture)

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> Image.Image:
        left, right = self._columns(left, right)
        window = self._image.crop((left, top, right, bottom))
        window.format = self.picture.format  # `read_mask` needs the format: the palette of a GIF means its colors
        return window

    def draft_for(self, preprocess: Preprocess) -> WindowedImage:
        if not isinstance(self.picture, JpegImageFile):
            return self
        return WindowedArray(*decode_image(self.source, self.name, draft_for=preprocess))


@contextmanager
def open_windowed(source: ImageSource, page: int = 0) -> Iterator[WindowedImage]:
    """Windows of a source: from the file itself for `.npy` and most TIFFs, else from one decoded copy.

    Raises ImageError for a source that cannot be read.
    """
    if isinstance(source, WindowSource):
        with source.open() as image:
            yield image
        return
    name = next(iter(source_files(source)), "image")
    with ExitStack() as stack:
        opened = stack.enter_context(open_source(source, name, page))
        with image_errors(name):
            image = _windows(opened, source, name, page, stack)
        yield image


def _windows(
    opened: Image.Image | np.ndarray | Raster, source: ImageSource, name: str, page: int, stack: ExitStack
) -> WindowedImage:
    """Windows of an opened source."""
    if isinstance(opened, Raster):
        return opened
    if isinstance(opened, np.ndarray):
        if opened.ndim not in (2, 3) or not opened.size:
            raise ValueError(f"its shape is {opened.shape}, not (H, W) or (H, W, C)")
        return WindowedArray(opened)
    if opened.format == "TIFF" and source_files(source):
        raster = open_plain_page(Path(name), opened.tell(), stack)
        if raster is not None:
            return raster
    return WindowedPicture(opened, source, name)


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
