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
        with suppress(ImageError):  # the error is reported when the file is decoded
            if isinstance(source, WindowSource) or _is_large(source):
                image = stack.enter_context(open_windowed(source))
        yield image if image is not None and image.decodes_windows else None


def _is_large(source: ImageSource) -> bool:
    """Whether a source is a large file of a format that may be read in windows. Raises ImageError."""
    files = source_files(source)
    if not files or not files[0].lower().endswith(WINDOWED_SUFFIXES):
        return False
    with open_source(source, files[0]) as image, image_errors(files[0]):
        size, _ = image.header()
        return bool(np.prod(size) >= LARGE_IMAGE_PIXELS)


def strips(image: WindowedImage) -> Iterator[tuple[int, Image.Image | np.ndarray]]:
    """(first row, rows) of all rows of a picture, some at a time."""
    height, width = image.size
    step = max(1, STRIP_PIXELS // width)
    for top in range(0, height, step):
        yield top, image.read(top, min(top + step, height))
