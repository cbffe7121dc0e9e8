"""Images too large for memory: windows of them, read from where they lie in the file."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
from PIL import Image

from data_utils.image_io.formats import TIFF_SUFFIXES, ImageSource, WindowSource, image_errors, source_files
from data_utils.image_io.pictures import WindowedPicture
from data_utils.image_io.rasters import open_plain_page
from data_utils.image_io.reader import open_source
from data_utils.image_io.windowed_image import WindowedArray, WindowedImage
from runtime.errors import ImageError

LARGE_IMAGE_PIXELS = 2**24  # pixels: a larger image is read in windows to take a crop
STRIP_PIXELS = 2**22  # pixels that are read together
WINDOWED_SUFFIXES = (".npy", *TIFF_SUFFIXES)


@contextmanager
def open_windowed(source: ImageSource, page: int = 0) -> Iterator[WindowedImage]:
    """Windows of a source: from the file itself for `.npy` and most TIFFs, else from one decoded copy.

    Raises ImageError for a source that cannot be read.
    """
    if isinstance(source, WindowSource):
        with source.open() as image:
            yield image
        return
    files = source_files(source)
    name = files[0] if files else "image"
    with ExitStack() as stack:
        image = stack.enter_context(open_source(source, name, page))
        with image_errors(name):
            if isinstance(image, WindowedArray):
                image.header()  # raises an error if it is no picture
            if isinstance(image, WindowedPicture) and image.format == "TIFF" and files:
                image = open_plain_page(Path(name), image.picture.tell(), stack) or image
        yield image


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
