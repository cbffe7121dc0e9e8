"""Resizing: images bicubic, whole or some rows, which come out the same to the last bit; masks to the nearest pixel."""

import math
from collections.abc import Callable

import numpy as np
from PIL import Image

Window = tuple[tuple[int, int], ...]  # (start, stop) of each axis
Size = tuple[int, int]  # (H, W)
Box = tuple[float, float, float, float]  # left, top, right, bottom


def resize_image(pixels: np.ndarray, size: tuple[int, int], box: Box | None = None) -> np.ndarray:
    """(H, W, C) -> (*size, C), bicubic with antialiasing (Pillow's); uint8 stays uint8, other types become float32.

    `box` is the part that becomes `size`; what lies around it is only looked at.
    """
    box = box or (0, 0, pixels.shape[1], pixels.shape[0])
    if box == (0, 0, *size[::-1]) and pixels.shape[:2] == size:
        return pixels
    if pixels.dtype == np.uint8 and pixels.shape[2] in (1, 3):
        image = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
        return np.asarray(_resize(image, size, box)).reshape(*size, -1)
    channels = [Image.fromarray(channel.astype(np.float32)) for channel in np.moveaxis(pixels, 2, 0)]
    resized = np.stack([np.asarray(_resize(channel, size, box)) for channel in channels], axis=2)
    return resized.round().clip(0, 255).astype(np.uint8) if pixels.dtype == np.uint8 else resized


def _resize(image: Image.Image, size: tuple[int, int], box: Box) -> Image.Image:
    # along the rows first: left to itself Pillow chooses the order by its version, and the order rounds differently
    image = image.resize((size[1], image.height), Image.Resampling.BICUBIC, box=(box[0], 0, box[2], image.height))
    return image.resize(size[::-1], Image.Resampling.BICUBIC, box=(0, box[1], size[1], box[3]))


def resize_rows(
    read: Callable[[int, int], np.ndarray], extent: tuple[float, float], size: tuple[int, int], start: int, stop: int
) -> np.ndarray:
    """Rows [start, stop) of what `resize_image` gives, (stop - start, w, C); `read` gives rows of the image."""
    if size[0] == extent[0]:
        return resize_image(read(start, stop), (stop - start, size[1]), (0, 0, extent[1], stop - start))
    taps, weights = bicubic(extent[0], size[0], start, stop)
    pixels = read(taps.min(), taps.max() + 1)
    integer = pixels.dtype == np.uint8
    fixed_point = integer and pixels.shape[2] in (1, 3)  # Pillow's arithmetic for its 8-bit modes
    if not fixed_point:
        pixels = pixels.astype(np.float32)
    pixels = resize_image(pixels, (len(pixels), size[1]), (0, 0, extent[1], len(pixels)))
    pixels = _weighted(pixels, taps - taps.min(), weights, fixed_point)
    return pixels.round().clip(0, 255).astype(np.uint8) if integer else pixels


def resize_window(
    read: Callable[[int, int, int, int], np.ndarray], extent: tuple[int, int], size: tuple[int, int], window: Window
) -> np.ndarray:
    """The `window` (rows, columns) of what `resize_image` gives for an image of `extent` resized to `size`.

    `read(top, bottom, left, right)` gives a part of the image. Equal but for a rounding of the weights' last bit.
    """
    parts = []
    for length, target, (start, stop) in zip(extent, size, window, strict=True):
        scale = length / target
        around = math.ceil(2 * max(scale, 1.0)) + 1 if scale != 1 else 0
        first = max(math.floor(start * scale) - around, 0)
        parts.append(
            (first, min(math.ceil(stop * scale) + around, length), start * scale - first, stop * scale - first)
        )
    (top, bottom, *rows), (left, right, *columns) = parts
    box = (columns[0], rows[0], columns[1], rows[1])
    height, width = (stop - start for start, stop in window)
    return resize_image(read(top, bottom, left, right), (height, width), box)


def bicubic(extent: float, target: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
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


def linear(extent: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    """As `bicubic`, for all targets, with straight lines between the centres of the pixels; widened when shrinking."""
    scale = extent / target
    widening = max(scale, 1.0)
    centers = (np.arange(target) + 0.5) * scale
    taps = np.floor(centers - widening).astype(int)[:, None] + np.arange(2 * math.ceil(widening) + 1)
    weights = np.maximum(1 - np.abs(taps + 0.5 - centers[:, None]) / widening, 0)
    weights[(taps < 0) | (taps >= extent)] = 0
    return taps.clip(0, extent - 1), weights / weights.sum(axis=1, keepdims=True)


def _weighted(pixels: np.ndarray, taps: np.ndarray, weights: np.ndarray, fixed_point: bool) -> np.ndarray:
    """(H, w, C) -> (n, w, C): the sum over each target's taps, rounded as Pillow rounds."""
    bits = 22
    if fixed_point:
        weights = np.trunc(weights * 2**bits + np.copysign(0.5, weights)).astype(np.int32)
    sums = np.full((len(taps), *pixels.shape[1:]), 1 << bits - 1 if fixed_point else 0, weights.dtype)
    for tap in range(taps.shape[1]):
        sums += pixels[taps[:, tap]] * weights[:, tap, None, None]
    return (sums >> bits).clip(0, 255).astype(np.uint8) if fixed_point else sums.astype(np.float32)


def same_proportions(first: Size, second: Size) -> bool:
    """Whether one (H, W) is the other resized, with the sides of the smaller one rounded, up or down.

    With one side equal the other may be a pixel off: more of it is a border, or has been cut off.
    """
    differences = [abs(one - other) for one, other in zip(first, second, strict=True)]
    if min(differences) == 0:
        return max(differences) <= 1
    largest = max(first, second, key=lambda size: size[0] * size[1])
    return abs(first[0] * second[1] - first[1] * second[0]) <= max(largest)


def nearest(want: int, have: int) -> np.ndarray:
    """(want,) for each pixel along a side resized from `have`: the one under its centre."""
    return ((2 * np.arange(want) + 1) * have) // (2 * want)


def resize_mask(mask: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """(H, W) or (H, W, 3) or, of volumes, (D, H, W) -> (*size, ...), each pixel the nearest one's value."""
    for axis, (want, have) in enumerate(zip(size, mask.shape, strict=False)):
        if want != have:
            mask = mask.take(nearest(want, have), axis)
    return mask
