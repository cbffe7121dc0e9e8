"""Resizing: images bicubic, whole or a window of them; masks to the nearest pixel."""

import math
from collections.abc import Callable

import numpy as np
from PIL import Image

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
        # resizing makes fractions, and carries values beyond their range
        return resized.round().clip(0, 255).astype(np.uint8)
    return resized


def _resize(image: Image.Image, size: tuple[int, int], box: ResizeBox) -> np.ndarray:
    """The `box` of an image at `size` (H, W)."""
    height, width = size
    left, top, right, bottom = box
    # along the rows first: left to itself Pillow chooses the order by its version, and the order rounds differently
    image = image.resize((width, image.height), Image.Resampling.BICUBIC, box=(left, 0, right, image.height))
    image = image.resize((width, height), Image.Resampling.BICUBIC, box=(0, top, width, bottom))
    return np.asarray(image)


def resize_window(
    read: Callable[[int, int, int, int], np.ndarray], extent: tuple[float, float], size: tuple[int, int], window: Window
) -> np.ndarray:
    """The `window` (rows, columns) of the result of `resize_image` for an image of `extent` resized to `size`.

    `read(top, bottom, left, right)` gives a part of the image. The values are equal but for a rounding of the weights'
    last bit.
    """
    rows, columns = window
    top, bottom = _needed_range(extent[0], size[0], rows)
    left, right = _needed_range(extent[1], size[1], columns)
    row_scale = extent[0] / size[0]
    column_scale = extent[1] / size[1]
    box = (
        columns[0] * column_scale - left,
        rows[0] * row_scale - top,
        columns[1] * column_scale - left,
        rows[1] * row_scale - top,
    )
    window_size = (rows[1] - rows[0], columns[1] - columns[0])
    return resize_image(read(top, bottom, left, right), window_size, box)


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


def resampling_weights(length: int, target: int, *, is_linear: bool) -> tuple[np.ndarray, np.ndarray]:
    """Input pixels and weights, (target, taps) each, of the output pixels of `length` pixels resized to `target`.

    Linear between the pixels' centers, or Keys' cubic with a = -1/2 as in Pillow's Resample.c; widened when shrinking.
    """
    scale = length / target
    widening = max(scale, 1.0)
    radius = widening if is_linear else 2 * widening
    centers = (np.arange(target) + 0.5) * scale
    first = np.floor(centers - radius).astype(int)
    taps = first[:, None] + np.arange(2 * math.ceil(radius) + 1)
    x = np.abs((taps - centers[:, None] + 0.5) / widening)
    if is_linear:
        weights = np.maximum(1 - x, 0)
    else:
        near = (1.5 * x - 2.5) * x * x + 1
        far = (((x - 5) * x + 8) * x - 4) * -0.5
        weights = np.select([x < 1, x < 2], [near, far])
    weights[(taps < 0) | (taps >= length)] = 0
    return taps.clip(0, length - 1), weights / weights.sum(axis=1, keepdims=True)


def same_proportions(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether one (H, W) is the other resized, with the sides of the smaller one rounded, up or down.

    If one side is equal the other may be a pixel off; a larger difference is a border, or a part cut off.
    """
    height_difference = abs(first[0] - second[0])
    width_difference = abs(first[1] - second[1])
    if height_difference == 0 or width_difference == 0:
        return max(height_difference, width_difference) <= 1
    largest = max(first, second, key=lambda size: size[0] * size[1])
    return abs(first[0] * second[1] - first[1] * second[0]) <= max(largest)


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
