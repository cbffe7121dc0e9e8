"""From an image file to a network's input, whole or in parts; the same in training and prediction."""

import warnings
from functools import cached_property

import numpy as np

from data_utils.image_io.reader import read_image
from data_utils.image_io.resize import (
    Window,
    nearest_pixels,
    needed_box,
    resize_image,
    resize_mask,
    resize_rows,
    resize_window,
)
from data_utils.image_io.windowed import WindowedArray, WindowedImage
from data_utils.target import AnyTarget
from runtime.errors import ImageError, UserWarningLine
from unet.config import Preprocess

CHUNK_ROWS = 128  # output rows that are resized at once, at most
CHUNK_VALUES = 2**22  # numbers in these rows
COLORS = 3  # channels of a color image, in which grey looks as it is


class ImageInput:
    """An image as a network sees it: raw pixel values at its input size, for the model normalizes them.

    The values are the same whether it is read whole, in rows or in windows: in rows to the last bit, in windows up to
    rounding.

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
        pixels = self._rows(start, stop)
        if self._is_unit_range:
            pixels = pixels * 255
        return pixels

    def window(self, window: Window) -> tuple[np.ndarray, np.ndarray | None]:
        """A window (C, h, w) of the network's input, and where in it no channel holds data; None if all have data.

        Its values count as not in 0..1, whatever they are: to know better needs the whole picture.
        """
        extent = self.picture.size
        box = needed_box(extent, self.size, window)
        stored = read_image(self.picture, self.name, box=box)
        pixels = resize_window(self._fit(stored), box, extent, self.size, window).transpose(2, 0, 1)
        missing = missing_pixels(stored)
        if missing is not None:
            rows, columns = nearest_pixels(extent, self.size, window)
            missing = missing[rows - box.top][:, columns - box.left]
        return np.ascontiguousarray(pixels, _input_type(pixels)), missing

    @cached_property
    def _is_unit_range(self) -> bool:
        """Whether all values are in 0..1, and the model expects them in 0..255."""
        if not self.preprocess.detect_unit_range:
            return False
        height = self.size[0]
        step = self._chunk
        tops = range(0, height, step)
        return not any((self._rows(top, min(top + step, height)) > 1).any() for top in tops)

    @property
    def _chunk(self) -> int:
        """How many output rows are resized at once: fewer where they are long and have many channels."""
        return max(1, min(CHUNK_ROWS, CHUNK_VALUES // (self.size[1] * self.channels)))

    def _rows(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) of the network's input, (C, stop - start, w), in the file's own value range."""
        pixels = np.empty((self.channels, 0, 0))
        step = self._chunk
        for first in range(start, stop, step):
            last = min(first + step, stop)
            rows = resize_rows(self._read, self.picture.extent, self.size, first, last).transpose(2, 0, 1)
            if first == start:
                # pixels of 16 bits keep their type: rows of scenes with many bands are large
                dtype = np.uint16 if rows.dtype == np.uint16 else _input_type(rows)
                pixels = np.empty((self.channels, stop - start, self.size[1]), dtype)
            pixels[:, first - start : last - start] = rows
        return pixels

    def _read(self, top: int, bottom: int) -> np.ndarray:
        return self._fit(read_image(self.picture, self.name, box=self.picture.rows(top, bottom)))

    def _fit(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels (H, W, C) with the model's channels; a warning, once, for what it was not trained on."""
        known_types = self.preprocess.pixel_types
        if known_types and str(pixels.dtype) not in known_types:
            warnings.warn(
                f"images hold {pixels.dtype} pixels, but the model was trained on {' and '.join(known_types)}:"
                " results are meaningless unless you store them like the training images",
                UserWarningLine,
                stacklevel=2,
            )
        if pixels.shape[2] == 1 and self.channels not in (1, COLORS):
            warnings.warn(
                f"images hold one channel, which stands for each of the {self.channels} that the model takes:"
                " results are meaningless unless training images were so too",
                UserWarningLine,
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


def _input_type(pixels: np.ndarray) -> type[np.generic]:
    """The type of a network's input made of these pixels."""
    return np.uint8 if pixels.dtype == np.uint8 else np.float32


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
