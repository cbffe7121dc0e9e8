"""From an image file to a network's input, whole or in parts; the same in training and prediction."""

import warnings
from functools import cached_property

import numpy as np

from data_utils.image_io.reader import read_image
from data_utils.image_io.resize import Window, nearest_pixels, resize_image, resize_mask, resize_window
from data_utils.image_io.windowed import WindowedArray, WindowedImage
from data_utils.target import AnyTarget
from runtime.errors import ImageError, UserWarningLine
from unet.config import Preprocess

CHUNK_ROWS = 128  # rows whose values are looked at together

Side = tuple[int, int]  # first and last pixel along a side, the last one left out


class PixelTypeWarning(UserWarningLine):
    """A warning that images have another pixel type than the images that the model was trained on."""


class ImageInput:
    """An image as a network sees it: raw pixel values at its input size, for the model normalizes them.

    The values are the same, up to rounding, whether it is read whole, in rows or in windows.

    Attributes:
        size: (h, w) of the network's input.
    """

    def __init__(self, picture: WindowedImage, preprocess: Preprocess, channels: int, name: str = "image") -> None:
        self.picture = picture
        self.preprocess = preprocess
        self.channels = channels
        self.name = name
        self.size = preprocess.input_size(*picture.size)

    def whole(self) -> np.ndarray:
        """(C, h, w) uint8 or float32, of an image that is decoded whole."""
        assert isinstance(self.picture, WindowedArray)
        pixels = self._fit(self.picture.array)
        height, width = self.picture.extent
        pixels = resize_image(pixels, self.size, (0, 0, width, height))
        if pixels.dtype != np.uint8:
            pixels = pixels.astype(np.float32)
        if self.preprocess.detect_unit_range and not (pixels > 1).any():
            pixels = pixels * 255  # still uint8 where it was, and 0 or 1
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def strip(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) of the network's input: (C, stop - start, w), uint8, uint16 or float32."""
        pixels = self._resized((start, stop), (0, self.size[1]))
        if self._is_unit_range:
            pixels = pixels * 255
        if pixels.dtype in (np.uint8, np.uint16):  # rows of scenes with many bands are large
            return pixels
        return pixels.astype(np.float32, copy=False)

    def window(self, window: Window) -> np.ndarray:
        """A window (C, h, w) of the network's input, uint8 or float32.

        Its values count as not in 0..1, whatever they are: to know better needs the whole picture.
        """
        pixels = self._resized(*window)
        return pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)

    @cached_property
    def _is_unit_range(self) -> bool:
        """Whether all values are in 0..1, and the model expects them in 0..255."""
        if not self.preprocess.detect_unit_range:
            return False
        height, width = self.size
        for top in range(0, height, CHUNK_ROWS):
            rows = (top, min(top + CHUNK_ROWS, height))
            if (self._resized(rows, (0, width)) > 1).any():
                return False
        return True

    def _resized(self, rows: Side, columns: Side) -> np.ndarray:
        """A window (C, h, w) of the network's input, in the file's own value range."""
        pixels = resize_window(self._read, self.picture.extent, self.size, (rows, columns))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def _read(self, top: int, bottom: int, left: int = 0, right: int | None = None) -> np.ndarray:
        return self._fit(read_image(self.picture.read(top, bottom, left, right), self.name))

    def _fit(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels (H, W, C) with the model's channels; a warning, once, for another type than it was trained on."""
        known_types = self.preprocess.pixel_types
        if known_types and str(pixels.dtype) not in known_types:
            warnings.warn(
                f"images hold {pixels.dtype} pixels, but the model was trained on {' and '.join(known_types)}:"
                " results are meaningless unless you store them like the training images",
                PixelTypeWarning,
                stacklevel=2,
            )
        pixels = fit_channels(pixels, self.channels, self.name)
        if isinstance(pixels, np.ma.MaskedArray):
            return self._fill(pixels)
        return pixels

    def _fill(self, pixels: np.ma.MaskedArray) -> np.ndarray:
        """Pixels in which values without data are replaced by the mean of their channel."""
        mean = np.array(self.preprocess.mean or (0.0,))
        if len(mean) not in (1, pixels.shape[2]):  # an encoder sees grey images in color
            mean = mean[:1]
        if pixels.dtype.kind != "f":
            mean = mean.round()
        return np.where(np.ma.getmaskarray(pixels), mean.astype(pixels.dtype), pixels.data)

    def missing(self, window: Window) -> np.ndarray | None:
        """(h, w) bool, true where no channel of a `window` of the network's input holds data; None if all have data."""
        if not self.picture.may_lack_data:
            return None
        rows, columns = nearest_pixels(self.picture.size, self.size, window)
        missing = missing_pixels(self.picture.read(rows[0], rows[-1] + 1, columns[0], columns[-1] + 1))
        if missing is None:
            return None
        return missing[rows - rows[0]][:, columns - columns[0]]


def missing_pixels(pixels: object) -> np.ndarray | None:
    """(H, W) bool, true where no channel of pixels (H, W, C) holds data; None if every pixel has data."""
    if not isinstance(pixels, np.ma.MaskedArray):
        return None
    missing = np.asarray(np.ma.getmaskarray(pixels).all(axis=2))
    return missing if missing.any() else None


def hide_missing(target: AnyTarget, missing: np.ndarray | None) -> AnyTarget:
    """The target (*spatial) of an image, set to unknown where the image, of any size, holds no data."""
    if missing is None:
        return target
    return target.map_with_unknown(
        lambda labels, unknown: np.where(resize_mask(missing, labels.shape), labels.dtype.type(unknown), labels)
    )


def fit_channels(pixels: np.ndarray, channels: int, name: str = "image") -> np.ndarray:
    """(H, W, C) -> (H, W, channels): grey is repeated, color that is grey is reduced, the rest is an ImageError."""
    own_channels = pixels.shape[2]
    if own_channels == channels:
        return pixels
    if own_channels == 1:
        return np.repeat(pixels, channels, axis=2)
    if channels == 1 and (pixels == pixels[:, :, :1]).all():
        return pixels[:, :, :1]
    raise ImageError(
        f"{name}: has {own_channels} channels, the model takes {channels}; convert the image, or train on such images"
    )
