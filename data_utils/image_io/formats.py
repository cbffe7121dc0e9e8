"""Opening whatever a picture comes in, and one error for what cannot be opened or decoded."""

import struct
import tokenize
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from runtime.errors import ImageError, UserError


class DrawnMask(ABC):
    """A mask that is drawn from annotations whenever it is read: a small object that can be pickled."""

    @abstractmethod
    def draw(self) -> np.ndarray:
        """Mask values, (H, W) uint8 or uint16. Raises DataError, with the file and the annotation."""


class EmbeddedImage(ABC):
    """An image inside another file, taken out whenever it is read: a small object that can be pickled."""

    @abstractmethod
    def read(self) -> bytes | np.ndarray:
        """The bytes of an image file, or its pixels. Raises DataError, with the file that holds it."""


class VolumeFile(NamedTuple):
    """The file of a volume, or one for each of its channels; and (z, y, x) in mm where the files do not say it."""

    paths: tuple[str, ...]
    spacing: tuple[float, float, float] | None = None


ImageSource = str | Path | bytes | dict | Image.Image | np.ndarray | DrawnMask | EmbeddedImage | VolumeFile

TIFF_SUFFIXES = (".tif", ".tiff")
IMAGE_SUFFIXES: tuple[str, ...] = (".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".npy", ".pbm", ".pgm", ".png", ".pnm")
IMAGE_SUFFIXES += (".ppm", ".tga", *TIFF_SUFFIXES, ".webp")
TURNED = (5, 6, 7, 8)  # EXIF and TIFF orientations that swap height and width
# what Pillow raises for damaged files and, parsing the header, NumPy
UNREADABLE: tuple[type[Exception], ...] = (OSError, SyntaxError, ValueError, EOFError, OverflowError, MemoryError)
UNREADABLE += (struct.error, zlib.error, tokenize.TokenError, Image.DecompressionBombError)
# what tifffile raises, besides, where a damaged header holds a wrong number or type (found by damaging headers)
# and imagecodecs, where that is installed, for damaged segments
DAMAGED_TIFF = (AttributeError, LookupError, TypeError, ArithmeticError, AssertionError, RuntimeError)
TOO_LARGE = (
    " To train on it, give --crop-size without --cache, and store it as .npy, or as TIFF of 8 bits, or grey of 16 bits"
    " or float, uncompressed or deflate; to validate on it, cut it into smaller images"
)

# once, not around each file: the filters belong to all threads; what is far larger still is an error
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


@contextmanager
def readable(name: str, *more: type[Exception]) -> Iterator[None]:
    """Within, an error in opening or decoding a picture, or one of `more`, becomes an ImageError with `name`."""
    try:
        yield
    except UserError:
        raise
    except (*UNREADABLE, *more) as error:  # type: ignore[misc]  # mypy knows no * here
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, UnidentifiedImageError):  # Pillow names an object in memory
            reason = "empty, not an image, or in a format that Pillow does not know"
        if isinstance(error, Image.DecompressionBombError):
            reason += TOO_LARGE
        raise ImageError(f"{name} cannot be read ({reason})") from error


@contextmanager
def opened(source: ImageSource | None, name: str, page: int = 0) -> Iterator[Image.Image | np.ndarray]:
    """The picture (and page, of a TIFF) or array of a source, not decoded yet; an array may be mapped from its file.

    An error while it is open becomes an ImageError with `name`.
    """
    with readable(name):
        content = cast(Any, source)
        if isinstance(source, dict):  # `datasets` with Image(decode=False), or a page of a TIFF
            page = source.get("page", page)
            content = source["bytes"] if source.get("bytes") is not None else source["path"]
        if isinstance(content, EmbeddedImage):
            content = content.read()
        if content is None:
            raise ImageError(f"{name} is missing")
        if isinstance(content, DrawnMask):
            yield content.draw()
        elif isinstance(content, Image.Image | np.ndarray):
            yield content
        elif isinstance(content, bytes) and content.startswith(b"\x93NUMPY"):
            yield np.lib.format.read_array(BytesIO(content), allow_pickle=False)
        elif isinstance(content, str | Path) and str(content).lower().endswith(".npy"):
            yield np.lib.format.open_memmap(content, mode="r")
        else:
            with Image.open(BytesIO(content) if isinstance(content, bytes) else content) as picture:
                if page:
                    picture.seek(page)
                yield picture


def orientation(picture: Image.Image) -> int:
    """EXIF orientation, 1 for upright."""
    return picture.getexif().get(ExifTags.Base.Orientation, 1)
