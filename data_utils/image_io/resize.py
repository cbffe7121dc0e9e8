"""Resizing: images bicubic, whole or some rows, which come out the same to the last bit; masks to the nearest pixel."""

import math
from collections.abc import Callable

import numpy as np
from PIL import Image

from data_utils.image_io.formats import Box

Window = tuple[tuple[int, int], ...]  # (start, stop) of each axis
Size = tuple[int, ...]  # (H, W) or (D, H, W)
ResizeBox = tuple[float, float, float, float]  # left, top, right, bottom


def resize_image(pixels: np.ndarray, size: tuple[int, int], box: ResizeBox | None = None) -> np.ndarray:
    """(H, W, C) -> (*size, C), bicubic with antialiasing (Pillow's); uint8 stays uint8, other types become float32.

    `box` is the part that is resized to `size`; pixels around it only contribute to its border.
    """
    height, width = size
    box = box or (0, 0, pixels.shape[1], pixels.shape[0])
    if box == (0, 0, width, height) and pixels.shape[:2] == size:
        return pixels
    if pixels.dtype == np.uint8 and pixels.shape[2] in (1, 3):
        image = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
        return _resize(image, size, box).reshape(height, width, -1)
    channels = [Image.fromarray(channel.astype(np.float32)) for channel in np.moveaxis(pixels, 2, 0)]
    resized = np.stack([_resize(channel, size, box) for channel in channels], axis=2)
    if pixels.dtype == np.uint8:
        return _as_uint8(resized)
    return resized


def _resize(image: Image.Image, size: tuple[int, int], box: ResizeBox) -> np.ndarray:
    """The `box` of an image at `size` (H, W)."""
    height, width = size
    left, top, right, bottom = box
    # along the rows first: left to itself Pillow chooses the order by its version, and the order rounds differently
    image = image.resize((width, image.height), Image.Resampling.BICUBIC, box=(left, 0, right, image.height))
    image = image.resize((width, height), Image.Resampling.BICUBIC, box=(0, top, width, bottom))
    return np.asarray(image)


def _as_uint8(values: np.ndarray) -> np.ndarray:
    """Pixel values, which resizing may have made fractions or carried beyond their range, as uint8."""
    return values.round().clip(0, 255).astype(np.uint8)


def resize_rows(
    read: Callable[[int, int], np.ndarray], extent: tuple[float, float], size: tuple[int, int], start: int, stop: int
) -> np.ndarray:
    """Rows [start, stop) of the result of `resize_image`, (stop - start, w, C); `read` gives rows of the image."""
    height, width = size
    if height == extent[0]:
        return resize_image(read(start, stop), (stop - start, width), (0, 0, extent[1], stop - start))
    taps, weights = bicubic(extent[0], height, start, stop)
    pixels = read(taps.min(), taps.max() + 1)
    is_uint8 = pixels.dtype == np.uint8
    fixed_point = is_uint8 and pixels.shape[2] in (1, 3)  # Pillow's arithmetic for its 8-bit modes
    if not fixed_point:
        pixels = pixels.astype(np.float32)
    pixels = resize_image(pixels, (len(pixels), width), (0, 0, extent[1], len(pixels)))
    pixels = _weighted_sum(pixels, taps - taps.min(), weights, fixed_point)
    if is_uint8:
        return _as_uint8(pixels)
    return pixels


def needed_box(extent: tuple[float, float], size: tuple[int, int], window: Window) -> Box:
    """The pixels of an image of `extent` that `resize_window` needs for a window of the image resized to `size`."""
    rows, columns = window
    top, bottom = _needed_range(extent[0], size[0], rows)
    left, right = _needed_range(extent[1], size[1], columns)
    return Box(top, bottom, left, right)


def resize_window(
    pixels: np.ndarray, box: Box, extent: tuple[float, float], size: tuple[int, int], window: Window
) -> np.ndarray:
    """The `window` (rows, columns) of the result of `resize_image` for an image of `extent` resized to `size`.

    `pixels` are those of the `needed_box`. The values are equal but for a rounding of the weights' last bit.
    """
    rows, columns = window
    row_scale = extent[0] / size[0]
    column_scale = extent[1] / size[1]
    resized_box = (
        columns[0] * column_scale - box.left,
        rows[0] * row_scale - box.top,
        columns[1] * column_scale - box.left,
        rows[1] * row_scale - box.top,
    )
    return resize_image(pixels, (rows[1] - rows[0], columns[1] - columns[0]), resized_box)


def _needed_range(length: float, target: int, part: tuple[int, int]) -> tuple[int, int]:
    """Along a side of `length` pixels resized to `target`: the pixels [first, last) that `part` of it depends on."""
    start, stop = part
    scale = length / target
    margin = 0
    if scale != 1:
        margin = math.ceil(2 * max(scale, 1.0)) + 1
    first = max(math.floor(start * scale) - margin, 0)
    last = min(math.ceil(stop * scale) + margin, math.ceil(length))
    return first, last


def bicubic(extent: float, target: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Input pixels and weights, (n, taps) each, of output pixels [start, stop) of `extent` pixels resized to `target`.

    Keys' cubic with a = -1/2, widened when shrinking, as in Pillow's Resample.c.
    """
    scale = extent / target
    length = math.ceil(extent)
    widening = max(scale, 1.0)
    centers = (np.arange(start, stop) + 0.5) * scale
    first = np.maximum((centers - 2 * widening + 0.5).astype(int), 0)
    last = np.minimum((centers + 2 * widening + 0.5).astype(int), length)
    taps = first[:, None] + np.arange((last - first).max())
    x = np.abs((taps - centers[:, None] + 0.5) / widening)  # the argument of Keys' cubic
    near = (1.5 * x - 2.5) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    weights = np.select([x < 1, x < 2], [near, far])
    weights[taps >= last[:, None]] = 0
    return np.minimum(taps, length - 1), weights / weights.sum(axis=1, keepdims=True)


def linear(extent: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    """Input pixels and weights, as `bicubic` gives them, of all output pixels: linear between the pixels' centers.

    The weights too are widened when shrinking.
    """
    scale = extent / target
    widening = max(scale, 1.0)
    centers = (np.arange(target) + 0.5) * scale
    first = np.floor(centers - widening).astype(int)
    taps = first[:, None] + np.arange(2 * math.ceil(widening) + 1)
    weights = np.maximum(1 - np.abs(taps + 0.5 - centers[:, None]) / widening, 0)
    weights[(taps < 0) | (taps >= extent)] = 0
    return taps.clip(0, extent - 1), weights / weights.sum(axis=1, keepdims=True)


def _weighted_sum(pixels: np.ndarray, taps: np.ndarray, weights: np.ndarray, fixed_point: bool) -> np.ndarray:
    """(H, w, C) -> (n, w, C): the sum over each target's taps, rounded as Pillow rounds."""
    bits = 22
    half = 0
    if fixed_point:
        half = 1 << (bits - 1)
        weights = np.trunc(weights * 2**bits + np.copysign(0.5, weights)).astype(np.int32)
    sums = np.full((len(taps), *pixels.shape[1:]), half, weights.dtype)
    for tap in range(taps.shape[1]):
        sums += pixels[taps[:, tap]] * weights[:, tap, None, None]
    if fixed_point:
        return (sums >> bits).clip(0, 255).astype(np.uint8)
    return sums.astype(np.float32)


def same_proportions(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether one (H, W) is the other resized, with the sides of the smaller one rounded, up or down.

    If one side is equal the other may be a pixel off; a larger difference is a border, or a part cut off.
    """
    height, width = first
    other_height, other_width = second
    differences = (abs(height - other_height), abs(width - other_width))
    if min(differences) == 0:
        return max(differences) <= 1
    largest = max(first, second, key=math.prod)
    return abs(height * other_width - width * other_height) <= max(largest)


def nearest(target: int, length: int) -> np.ndarray:
    """(target,) the input pixel under the center of each output pixel, for a side of `length` resized to `target`."""
    return ((2 * np.arange(target) + 1) * length) // (2 * target)


def nearest_pixels(extent: tuple[int, int], size: tuple[int, int], window: Window) -> tuple[np.ndarray, np.ndarray]:
    """The rows and the columns of an image of `extent` that form a `window` of the image resized to `size`."""
    row_range, column_range = window
    rows = nearest(size[0], extent[0])[slice(*row_range)]
    columns = nearest(size[1], extent[1])[slice(*column_range)]
    return rows, columns


def resize_mask(mask: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """(H, W), (H, W, 3) or, for volumes, (D, H, W) -> (*size, ...), each pixel with the value of the nearest one."""
    for axis, (target, length) in enumerate(zip(size, mask.shape, strict=False)):
        if target != length:
            mask = mask.take(nearest(target, length), axis)
    return mask
