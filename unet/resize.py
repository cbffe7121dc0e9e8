"""Bicubic resizing, of a whole image or of some rows of it, which come out the same to the last bit."""

import math
from collections.abc import Callable

import numpy as np
from PIL import Image


def resize_image(pixels: np.ndarray, size: tuple[int, int], extent: tuple[float, float] | None = None) -> np.ndarray:
    """(H, W, C) -> (*size, C), bicubic with antialiasing (Pillow's); uint8 stays uint8, other types become float32.

    `extent` is how far (H, W) the image itself reaches where the last pixels lie partly beyond its border.
    """
    extent = extent or pixels.shape[:2]
    if extent == size:
        return pixels
    if pixels.dtype == np.uint8 and pixels.shape[2] in (1, 3):
        image = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
        return np.asarray(_resize(image, size, extent)).reshape(*size, -1)
    channels = [Image.fromarray(channel.astype(np.float32)) for channel in np.moveaxis(pixels, 2, 0)]
    resized = np.stack([np.asarray(_resize(channel, size, extent)) for channel in channels], axis=2)
    return resized.round().clip(0, 255).astype(np.uint8) if pixels.dtype == np.uint8 else resized


def _resize(image: Image.Image, size: tuple[int, int], extent: tuple[float, float]) -> Image.Image:
    # along the rows first: left to itself Pillow chooses the order by its version, and the order rounds differently
    image = image.resize((size[1], image.height), Image.Resampling.BICUBIC, box=(0, 0, extent[1], image.height))
    return image.resize(size[::-1], Image.Resampling.BICUBIC, box=(0, 0, size[1], extent[0]))


def resize_rows(
    read: Callable[[int, int], np.ndarray], extent: tuple[float, float], size: tuple[int, int], start: int, stop: int
) -> np.ndarray:
    """Rows [start, stop) of what `resize_image` gives, (stop - start, w, C); `read` gives rows of the image."""
    if size[0] == extent[0]:
        return resize_image(read(start, stop), (stop - start, size[1]), (stop - start, extent[1]))
    taps, weights = _bicubic(extent[0], size[0], start, stop)
    pixels = read(taps.min(), taps.max() + 1)
    integer = pixels.dtype == np.uint8
    fixed_point = integer and pixels.shape[2] in (1, 3)  # Pillow's arithmetic for its 8-bit modes
    if not fixed_point:
        pixels = pixels.astype(np.float32)
    pixels = resize_image(pixels, (len(pixels), size[1]), (len(pixels), extent[1]))
    pixels = _weighted(pixels, taps - taps.min(), weights, fixed_point)
    return pixels.round().clip(0, 255).astype(np.uint8) if integer else pixels


def _bicubic(extent: float, target: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and weights, (n, taps) each, that make targets [start, stop) of `extent` pixels resized to `target`.

    Keys' cubic with a = -1/2, widened when shrinking, as in Pillow's Resample.c.
    """
    scale, length = extent / target, math.ceil(extent)
    widening = max(scale, 1.0)
    centers = (np.arange(start, stop) + 0.5) * scale
    first = np.maximum((centers - 2 * widening + 0.5).astype(int), 0)
    last = np.minimum((centers + 2 * widening + 0.5).astype(int), length)
    taps = first[:, None] + np.arange((last - first).max())
    x = np.abs((taps - centers[:, None] + 0.5) / widening)
    weights = np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, (((x - 5) * x + 8) * x - 4) * -0.5, 0))
    weights[taps >= last[:, None]] = 0
    return np.minimum(taps, length - 1), weights / weights.sum(axis=1, keepdims=True)


def _weighted(pixels: np.ndarray, taps: np.ndarray, weights: np.ndarray, fixed_point: bool) -> np.ndarray:
    """(H, w, C) -> (n, w, C): the sum over each target's taps, rounded as Pillow rounds."""
    bits = 22
    if fixed_point:
        weights = np.trunc(weights * 2**bits + np.copysign(0.5, weights)).astype(np.int32)
    sums = np.full((len(taps), *pixels.shape[1:]), 1 << bits - 1 if fixed_point else 0, weights.dtype)
    for tap in range(taps.shape[1]):
        sums += pixels[taps[:, tap]] * weights[:, tap, None, None]
    return (sums >> bits).clip(0, 255).astype(np.uint8) if fixed_point else sums.astype(np.float32)
