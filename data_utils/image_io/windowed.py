"""Images too large for memory: windows of them, read from where they lie in the file."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from data_utils.image_io.formats import (
    TIFF_SUFFIXES,
    ImageSource,
    RenderedMask,
    WindowSource,
    image_errors,
    source_files,
)
from data_utils.image_io.pictures import WindowedPicture
from data_utils.image_io.rasters import open_plain_page
from data_utils.image_io.reader import open_source
from data_utils.image_io.windowed_image import WindowedArray, WindowedImage
from runtime.errors import DataError, ImageError

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


class Box(NamedTuple):
    """Rows [top, bottom) and columns [left, right) of a scene."""

    top: int
    bottom: int
    left: int
    right: int


class WindowedPart(WindowedImage):
    """Windows of a part of another picture."""

    def __init__(self, picture: WindowedImage, box: Box) -> None:
        self.picture = picture
        self.box = box
        self.size = self.extent = (box.bottom - box.top, box.right - box.left)
        self.decodes_windows = picture.decodes_windows
        self.may_lack_data = picture.may_lack_data
        self.format = picture.format

    def header(self) -> tuple[tuple[int, int], str]:
        pixel = np.asarray(self.read(0, 1, 0, 1))
        return self.size, f"{pixel.dtype} x {pixel[0, 0].size}"

    def read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> Image.Image | np.ndarray:
        left, right = self._columns(left, right)
        box = self.box
        return self.picture.read(box.top + top, box.top + bottom, box.left + left, box.left + right)

    def pixels(self) -> np.ndarray:
        with open_source(self.read(0, self.size[0]), "window") as part:
            return part.pixels()

    def values(self) -> np.ndarray:
        with open_source(self.read(0, self.size[0]), "window") as part:
            return part.values()


@dataclass(frozen=True)
class SceneWindow(WindowSource):
    """A window of an image, or of an image's mask.

    Args:
        source: the image or mask.
        name: the name of the image or mask in messages.
        size: (H, W) of the image.
    """

    source: ImageSource
    name: str
    size: tuple[int, int]
    box: Box

    @contextmanager
    def open(self) -> Iterator[WindowedImage]:
        box = self.box
        if isinstance(self.source, RenderedMask):
            yield WindowedArray(self.source.render_part((box.top, box.bottom), (box.left, box.right)))
            return
        with open_windowed(self.source) as picture:
            if picture.size != self.size:
                sizes = f"{self.size[0]} x {self.size[1]}, its mask {picture.size[0]} x {picture.size[1]}"
                raise DataError(f"{self.name}: image is {sizes}; --val-blocks needs masks with a place, or of one size")
            yield WindowedPart(picture, box)
