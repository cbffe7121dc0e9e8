"""One picture: opening whatever it comes in, the values of a mask, the size from the header."""

import struct
import tokenize
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from runtime.errors import DataError

Source = str | Path | bytes | dict | Image.Image | np.ndarray
# what Pillow raises for damaged files and, parsing the header, NumPy
UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
    tokenize.TokenError,
    Image.DecompressionBombError,
)


@contextmanager
def opened(source: Source | None, name: str) -> Iterator[Image.Image | np.ndarray]:
    """The picture or array of a source, not decoded yet; what fails while it is open is a DataError with `name`."""
    try:
        page, content = 0, cast(Any, source)
        if isinstance(source, dict):  # `datasets` with Image(decode=False), or a page of a TIFF
            page = source.get("page", 0)
            content = source["bytes"] if source.get("bytes") is not None else source["path"]
        if content is None:
            raise DataError(f"{name} is missing")
        if isinstance(content, Image.Image | np.ndarray):
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
    except DataError:
        raise
    except UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, UnidentifiedImageError):  # Pillow names an object in memory
            reason = "empty, not an image, or in a format that Pillow does not know"
        if isinstance(error, Image.DecompressionBombError):
            reason += (
                " To train on crops of it, --crop-size, without --cache, and .npy or TIFF: 8-bit, or grey of 16 bits or"
                " float, uncompressed or deflate; to validate on it, cut it"
            )
        raise DataError(f"{name} cannot be read ({reason})") from error


def decode_mask(source: Source, name: str) -> tuple[np.ndarray, bool, bool]:
    """Mask values as `masks.read_mask` gives them, whether they are stored as colours, and whether as JPEG."""
    with opened(source, f"{name}: mask") as picture:
        mask = np.array(picture) if isinstance(picture, np.ndarray) else _pixels(picture)
        jpeg = not isinstance(picture, np.ndarray) and picture.format == "JPEG"
    if mask.ndim == 3 and mask.shape[2] == 1:
        mask = mask[:, :, 0]
    coloured = mask.ndim == 3 and mask.shape[2] in (3, 4) and mask.dtype == np.uint8
    if mask.size == 0 or mask.dtype.kind not in "buif" or not (mask.ndim == 2 or coloured):
        raise DataError(
            f"{name}: mask is an array of shape {mask.shape} and type {mask.dtype}, expected (H, W) whole numbers"
        )
    if coloured:
        red, green, blue = (mask[:, :, band] for band in range(3))
        grey = np.array_equal(red, green) and np.array_equal(red, blue)
        return (red if grey else mask[:, :, :3]), True, jpeg
    return _whole_numbers(mask, name), False, jpeg


def _pixels(picture: Image.Image) -> np.ndarray:
    """All pixels as stored: (H, W), or (H, W, 3 or 4) uint8."""
    is_gif = picture.format == "GIF"
    picture.load()  # after which a TIFF has been turned
    if picture.getexif().get(ExifTags.Base.Orientation, 1) != 1:  # without, Pillow would copy
        picture = ImageOps.exif_transpose(picture)
    if picture.mode in ("LA", "La", "PA"):
        return np.asarray(picture)[:, :, 0]
    if picture.mode in ("1", "L", "I", "F") or picture.mode.startswith("I;16") or (picture.mode == "P" and not is_gif):
        return np.asarray(picture)
    return np.asarray(picture if picture.mode in ("RGB", "RGBA", "RGBX") else picture.convert("RGB"))


def _whole_numbers(mask: np.ndarray, name: str) -> np.ndarray:
    """(H, W) numbers as uint8 or uint16 where they fit, else int64."""
    if mask.dtype in (np.uint8, np.uint16):
        return mask
    with np.errstate(invalid="ignore"):  # NaN becomes a whole number, which differs
        whole = mask.astype(np.int64)
    if mask.dtype.kind == "f" and (whole != mask).any():
        raise DataError(f"{name}: mask holds {mask[whole != mask][0]:g}, expected whole numbers")
    if whole.min() < 0 or whole.max() > 65535:
        return whole
    return whole.astype(np.uint8 if whole.max() < 256 else np.uint16)


def image_header(source: Source, name: str) -> tuple[tuple[int, int], str]:
    """((H, W) as seen, with EXIF orientation applied; mode), from the header alone. Raises DataError, with `name`."""
    with opened(source, name) as picture:
        if isinstance(picture, np.ndarray):
            if picture.ndim < 2:
                raise DataError(f"{name} is an array of shape {picture.shape}, expected (H, W) or (H, W, C)")
            channels = "" if picture.ndim == 2 else f" x {picture.shape[2]}"
            return picture.shape[:2], f"{picture.dtype}{channels}"
        width, height = picture.size
        # The method of PNG files would decode the pixels, lest the orientation stand behind them.
        turned = Image.Image.getexif(picture).get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
        # Pillow has turned the size of TIFF files already.
        return (width, height) if turned and picture.format != "TIFF" else (height, width), picture.mode


def image_size_of(source: Source, name: str) -> tuple[int, int]:
    """(H, W) as seen, from the header alone. Raises DataError, with `name`."""
    return image_header(source, name)[0]
