"""Transforms from an image file to a network's input, and of masks with it; the same in training and prediction."""

import warnings

import numpy as np

from data_utils.image_io.formats import ImageSource
from data_utils.image_io.reader import DecodedImage, check_sizes, decode_image, read_image
from data_utils.image_io.regions import Regions, regions_of
from data_utils.image_io.resize import Window, resize_image, resize_rows, resize_window
from data_utils.loading.crop import crop_around
from data_utils.sources.records import Record
from data_utils.targets.reader import TargetReader
from runtime.errors import ImageError, UserWarningLine
from tasks.target import Target
from unet.config import Preprocess

CHUNK = 128  # output rows that are resized at once


class PixelTypeWarning(UserWarningLine):
    """Images are stored in another way than those that the model was trained on."""


def network_input(
    source: ImageSource, preprocess: Preprocess, channels: int, name: str = "image", page: int = 0
) -> tuple[np.ndarray, tuple[int, int]]:
    """Read and resize an image: (C, h, w) uint8 or float32, raw pixel values (the model normalises); its own (H, W)."""
    decoded = decode_image(source, name, page, draft_for=preprocess)
    return fit_decoded(decoded, preprocess, channels, name), decoded.size


def fit_decoded(decoded: DecodedImage, preprocess: Preprocess, channels: int, name: str = "image") -> np.ndarray:
    """What `network_input` gives of an image that was decoded for `preprocess`: (C, h, w)."""
    pixels, size, extent = decoded
    pixels = fit_pixels(pixels, preprocess, channels, name)
    pixels = resize_image(pixels, preprocess.target_size(*size), (0, 0, *extent[::-1]))
    if pixels.dtype != np.uint8:
        pixels = pixels.astype(np.float32)
    if preprocess.detect_unit_range and not (pixels > 1).any():
        pixels = pixels * 255  # still uint8 where it was, and 0 or 1
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def input_rows(regions: Regions, preprocess: Preprocess, channels: int, name: str, start: int, stop: int) -> np.ndarray:
    """Rows [start, stop) of what `network_input` gives for the whole picture, bit for bit: (C, stop - start, w)."""

    def read(first: int, last: int) -> np.ndarray:
        return fit_pixels(read_image(regions.read(first, last), name), preprocess, channels, name)

    size, pixels = preprocess.target_size(*regions.size), np.empty((channels, 0, 0))
    for first in range(start, stop, CHUNK):
        part = resize_rows(read, regions.extent, size, first, min(first + CHUNK, stop)).transpose(2, 0, 1)
        if first == start:
            kind = np.uint8 if part.dtype == np.uint8 else np.float32
            pixels = np.empty((channels, stop - start, size[1]), kind)
        pixels[:, first - start : first - start + part.shape[1]] = part
    return pixels


def input_window(
    regions: Regions, preprocess: Preprocess, channels: int, window: Window, name: str = "image"
) -> np.ndarray:
    """The `window` of what `network_input` gives for the whole picture: (C, h, w).

    Only `detect_unit_range` is ignored: it would need the whole picture.
    """

    def read(top: int, bottom: int, left: int, right: int) -> np.ndarray:
        return fit_pixels(read_image(regions.read(top, bottom, left, right), name), preprocess, channels, name)

    pixels = resize_window(read, regions.size, preprocess.target_size(*regions.size), window).transpose(2, 0, 1)
    return np.ascontiguousarray(pixels, np.uint8 if pixels.dtype == np.uint8 else np.float32)


def random_window(
    record: Record,
    reader: TargetReader,
    preprocess: Preprocess,
    channels: int,
    crop_size: tuple[int, ...],
    class_locations: list[np.ndarray],
    rng: np.random.Generator,
) -> tuple[np.ndarray, Target]:
    """A random crop of a large image as the network sees it, (C, h, w), and of its target.

    Raises DataError where image and target are not of the same proportions.
    """
    name = record["name"]
    with regions_of(record["image"]) as image, reader.open_window(record) as target:
        check_sizes(name, image.size, target.size)  # they may have changed since they were looked at
        size = preprocess.target_size(*image.size)
        window = crop_around(class_locations, target.size, size, crop_size, rng)
        return input_window(image, preprocess, channels, window, name), target.read(size, window)


def fit_pixels(pixels: np.ndarray, preprocess: Preprocess, channels: int, name: str = "image") -> np.ndarray:
    """As `fit_channels`; a PixelTypeWarning, once, for pixels of another type than the model was trained on."""
    if preprocess.pixel_types and str(pixels.dtype) not in preprocess.pixel_types:
        warnings.warn(
            f"images hold {pixels.dtype} pixels, but the model was trained on {' and '.join(preprocess.pixel_types)}:"
            " results are meaningless unless you store them like the training images",
            PixelTypeWarning,
            stacklevel=2,
        )
    return fit_channels(pixels, channels, name)


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
