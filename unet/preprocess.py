"""The one preprocess: an image file becomes the network's input, class indices become a mask file again.

Training, evaluation and prediction all come through here, so what a model was trained on is what it is shown.
"""

import io
import struct
import tokenize
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from unet.resize import resize_image

MaskValue = int | tuple[int, int, int]
ImageSource = str | Path | bytes | dict | Image.Image | np.ndarray
Side = TypeVar("Side", int, float)

# what Pillow raises for damaged files and, parsing the header, NumPy
UNREADABLE: tuple[type[Exception], ...] = (OSError, SyntaxError, ValueError, EOFError, OverflowError, MemoryError)
UNREADABLE += (struct.error, zlib.error, tokenize.TokenError)
GREY_MODES = {"L": np.uint8, "I": np.int32, "F": np.float32}
TURNED = (5, 6, 7, 8)  # orientations that swap height and width

# once, not around each file: the filters belong to all threads; what is far larger still is an error
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class ImageError(ValueError):
    """An image that cannot be used, and why, in one line."""


class PixelTypeWarning(UserWarning):
    """Images are stored in another way than those that the model was trained on."""


@contextmanager
def readable(name: str, *more: type[Exception]) -> Iterator[None]:
    """What fails while a picture is opened or decoded, or is one of `more`, is an ImageError with `name`."""
    try:
        yield
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name}: {error}") from error
    except (*UNREADABLE, *more) as error:  # type: ignore[misc]  # mypy knows no * here
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ImageError(f"{name}: cannot be read as an image ({reason})") from error


def open_image(source: ImageSource, page: int = 0) -> Image.Image | np.ndarray:
    """The picture (and page, of a TIFF) or array of a source, not decoded yet."""
    if isinstance(source, dict):  # `datasets` with Image(decode=False), or a page of a TIFF
        content = source["bytes"] if source.get("bytes") is not None else source["path"]
        return open_image(content, source.get("page", page))
    if isinstance(source, bytes):
        is_npy = source.startswith(b"\x93NUMPY")
        return np.load(io.BytesIO(source), allow_pickle=False) if is_npy else Image.open(io.BytesIO(source))
    if isinstance(source, str | Path):
        if str(source).lower().endswith(".npy"):
            return np.load(source, allow_pickle=False)
        image = Image.open(source)
        image.seek(page)
        return image
    return source


def _pixels(image: Image.Image) -> np.ndarray:
    """Pixels of a decoded image in its own value range: (H, W) for grey modes, (H, W, 3) for every colour mode."""
    image.load()  # after which a TIFF has been turned
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:  # without, Pillow would copy
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return np.asarray(image).astype(np.uint16)
    if image.mode in ("1", "LA", "La"):
        image = image.convert("L")
    if image.mode not in GREY_MODES:
        image = image.convert("RGB")
    return np.asarray(image)


def read_image(source: ImageSource, name: str = "image", page: int = 0) -> np.ndarray:
    """Read an image from a path (and page, of a TIFF), bytes, a `datasets` record, a PIL image or an array.

    Returns (H, W, C) in the file's own value range: uint8, uint16, int32 or float32; C is 1 for grey, 3 for colour
    (palettes are resolved, alpha is dropped, CMYK converted), anything for a `.npy` of (H, W, C).
    Raises ImageError, with `name`, for what cannot be read.
    """
    with readable(name):
        return _checked(open_image(source, page), name)


def _checked(image: Image.Image | np.ndarray, name: str) -> np.ndarray:
    """Pixels (H, W, C) of an opened image."""
    pixels = _pixels(image) if isinstance(image, Image.Image) else image
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or 0 in pixels.shape or pixels.dtype.kind not in "buif":
        raise ImageError(
            f"{name}: is an array of shape {pixels.shape} and type {pixels.dtype}, not numbers as (H, W) or (H, W, C)"
        )
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise ImageError(f"{name}: has pixels that are not numbers (NaN or infinite)")
    return pixels.astype(np.uint8) if pixels.dtype == bool else pixels


def fit_channels(pixels: np.ndarray, channels: int, name: str = "image") -> np.ndarray:
    """(H, W, C) -> (H, W, channels): grey is repeated, colour that is grey is reduced, the rest is an ImageError."""
    have = pixels.shape[2]
    if have == channels:
        return pixels
    if have == 1:
        return np.repeat(pixels, channels, axis=2)
    if channels == 1 and (pixels == pixels[:, :, :1]).all():
        return pixels[:, :, :1]
    raise ImageError(
        f"{name}: has {have} channels, the model takes {channels}; convert the image, or train on such images"
    )


def size_as_seen(image: JpegImageFile) -> tuple[int, int]:
    """(H, W) of a JPEG file not decoded yet, its EXIF orientation applied."""
    return _as_seen(image, image.size)


def _as_seen(image: JpegImageFile, size: tuple[Side, Side]) -> tuple[Side, Side]:
    """(W, H) as stored <-> (H, W) as seen."""
    return size if image.getexif().get(ExifTags.Base.Orientation) in TURNED else size[::-1]


def draft_to(image: JpegImageFile, target_size: Callable[[int, int], tuple[int, int]]) -> tuple[float, float]:
    """Have a JPEG file decoded at the lowest of 1/1, 1/2, 1/4 and 1/8 of its size that is not below the target.

    Returns how far (H, W) the image itself will reach: the last pixels may lie partly beyond its border.
    """
    size = size_as_seen(image)
    upright = image.getexif().get(ExifTags.Base.Orientation, 1) == 1
    if not upright and any(side % 8 for side in size):  # turning would put such pixels elsewhere
        return size
    drafted = image.draft(None, _as_seen(image, target_size(*size)))
    return _as_seen(image, drafted[1][2:]) if drafted else size


@dataclass(frozen=True)
class Preprocess:
    """Everything beside weights that prediction needs; part of the model's config.json.

    Args:
        image_size: (H, W) that every image is resized to; None leaves `scale` to decide.
        scale: factor on height and width, rounded down.
        mean, std: of the training images for each channel, in the files' own value range; empty means 0 and 1.
        class_names, class_values: name and mask value (grey level or RGB colour) of each class.
        ignore_value: the mask value that counts in neither loss nor metric, None where there is none.
        detect_unit_range: take an image without a value above 1 for one in 0..1 instead of 0..255 (what Pytorch-UNet
            does, and its models expect).
        draft: decode of a JPEG file no more detail than the size asks for: several times as fast at half the size and
            below. So a file differs by a few grey levels from the array of its pixels.
        pixel_types: NumPy's names of the pixels that `mean` and `std` were measured on; others get a warning.
    """

    image_size: tuple[int, int] | None = None
    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()
    class_values: tuple[MaskValue, ...] = ()
    ignore_value: MaskValue | None = None
    detect_unit_range: bool = False
    draft: bool = True
    pixel_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # JSON knows lists only
        for field in ("image_size", "mean", "std", "class_names", "ignore_value", "pixel_types"):
            if isinstance(getattr(self, field), list):
                object.__setattr__(self, field, tuple(getattr(self, field)))
        values = tuple(tuple(value) if isinstance(value, list) else value for value in self.class_values)
        object.__setattr__(self, "class_values", values)
        if self.scale <= 0:
            raise ValueError(f"scale is {self.scale}, expected a number above 0")
        if any(value <= 0 for value in self.std):
            raise ValueError(f"std is {self.std}, expected numbers above 0")

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """(H, W) at which the network sees an image of `height` x `width`."""
        if self.image_size is not None:
            return self.image_size
        return max(1, int(height * self.scale)), max(1, int(width * self.scale))

    def image(self, source: ImageSource, channels: int, name: str = "image", page: int = 0) -> np.ndarray:
        """Read and resize an image: (C, h, w) uint8 or float32, raw pixel values (the model normalises)."""
        return self.read(source, channels, name, page)[0]

    def read(
        self, source: ImageSource, channels: int, name: str = "image", page: int = 0
    ) -> tuple[np.ndarray, tuple[int, int]]:
        """As `image`, and the (H, W) that the image itself has."""
        pixels, size, extent = self.decode(source, name, page)
        pixels = resize_image(self.fit(pixels, channels, name), self.target_size(*size), (0, 0, *extent[::-1]))
        if pixels.dtype != np.uint8:
            pixels = pixels.astype(np.float32)
        if self.detect_unit_range and not (pixels > 1).any():
            pixels = pixels * 255  # still uint8 where it was, and 0 or 1
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)), size

    def fit(self, pixels: np.ndarray, channels: int, name: str = "image") -> np.ndarray:
        """As `fit_channels`; a PixelTypeWarning, once, for pixels of another type than the model was trained on."""
        if self.pixel_types and str(pixels.dtype) not in self.pixel_types:
            warnings.warn(
                f"images hold {pixels.dtype} pixels, the model was trained on {' and '.join(self.pixel_types)}:"
                " store them as the training images were, or the results mean nothing",
                PixelTypeWarning,
                stacklevel=2,
            )
        return fit_channels(pixels, channels, name)

    def decode(
        self, source: ImageSource, name: str = "image", page: int = 0
    ) -> tuple[np.ndarray, tuple[int, int], tuple[float, float]]:
        """Pixels (h, w, C) as `read_image` gives them or, by `draft`, fewer of a JPEG file; (H, W) of the image itself;
        how far (h, w) of the pixels it reaches.
        """
        with readable(name):
            image = open_image(source, page)
            if not self.draft or not isinstance(image, JpegImageFile) or image is source:
                pixels = _checked(image, name)
                return pixels, pixels.shape[:2], pixels.shape[:2]
            size, extent = size_as_seen(image), draft_to(image, self.target_size)
            return _checked(image, name), size, extent

    def mask(self, indices: np.ndarray) -> np.ndarray:
        """Class indices (H, W) -> original mask values: (H, W) uint8 or uint16, or (H, W, 3) uint8 for colours."""
        values = self.class_values or tuple(range(int(indices.max()) + 1))
        if isinstance(values[0], tuple):
            return np.array(values, dtype=np.uint8)[indices]
        numbers = [value for value in values if isinstance(value, int)]
        if min(numbers) < 0 or max(numbers) > 65535:
            raise ImageError(f"mask values {min(numbers)} to {max(numbers)} cannot be written, a PNG holds 0 to 65535")
        return np.array(numbers, dtype=np.uint8 if max(numbers) < 256 else np.uint16)[indices]
