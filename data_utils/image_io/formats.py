"""What a picture comes in, and one error for what cannot be opened or decoded."""

import struct
import tokenize
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

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
# what Pillow raises for damaged files, and NumPy for damaged headers
UNREADABLE: tuple[type[Exception], ...] = (OSError, SyntaxError, ValueError, EOFError, OverflowError, MemoryError)
UNREADABLE += (struct.error, zlib.error, tokenize.TokenError, Image.DecompressionBombError)
# what tifffile raises, besides, where a damaged header holds a wrong number or type (found by damaging headers),
# and what imagecodecs, where that is installed, raises for damaged segments
DAMAGED_TIFF = (AttributeError, LookupError, TypeError, ArithmeticError, AssertionError, RuntimeError)
TOO_LARGE = (
    " To train on it, give --crop-size without --cache, and store it as .npy, or as TIFF of 8 bits, or grey of 16 bits"
    " or float, uncompressed or deflate; to validate on it, cut it into smaller images"
)

# set once, not around each file: the filters belong to all threads; a far larger image is still an error
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
