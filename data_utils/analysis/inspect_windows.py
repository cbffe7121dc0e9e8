"""`inspect_image` for images too large to be decoded whole for every crop: their masks are read in strips."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from data_utils.analysis.inspect_images import inspect_image, may_be_infinite
from data_utils.analysis.inspection import Inspection, Problem
from data_utils.analysis.problems import lossy_problem, size_problem, value_count_problem
from data_utils.image_io.reader import decode_mask, read_image
from data_utils.image_io.resize import same_proportions
from data_utils.image_io.windowed import WindowedImage, open_if_large, open_windowed, strips
from data_utils.mask_values import MAX_VALUES, as_color, count_colors, count_values, has_colors, pack, value_key
from data_utils.sources.records import Record
from runtime.errors import DataError
from unet.config import MaskValue

LOCATIONS = 64  # pixels of each class that are remembered, for crops around them


def inspect_in_windows(record: Record, *, has_classes: bool = True) -> Inspection | Problem:
    """The inspection of a large image, with some pixels of each value of its mask, (n, 2) as (row, column)."""
    name = record["name"]
    with open_if_large(record["image"]) as image:
        if image is None or isinstance(record["target"], bytes):
            return inspect_image(record, has_classes=has_classes)
        try:
            with open_windowed(record["target"]) as mask:
                if not same_proportions(image.size, mask.size):
                    return size_problem(name, image.size, mask.size)
                first = np.asarray(image.read(0, 1))
                mode = f"{first.dtype} x {first[0, 0].size}"
                problem = _infinite_problem(image, name) if may_be_infinite(mode) else None
                if problem:
                    return problem
                inspection = _inspect_strips(mask, image.size, mode, name, has_classes=has_classes)
                is_jpeg = str(record["target"]).lower().endswith((".jpg", ".jpeg"))
                if has_classes and is_jpeg and isinstance(inspection, Inspection) and len(inspection.pixels) > 2:
                    return lossy_problem(name, inspection.pixels)
                return inspection
        except DataError as error:
            return Problem("cannot be read in windows", f"{name}: {error}; store large masks as tiled TIFF")


def _infinite_problem(image: WindowedImage, name: str) -> Problem | None:
    """The problem that an image holds numbers that are not finite, or cannot be read; None if all are finite."""
    try:
        for _, strip in strips(image):
            read_image(strip, name)
    except DataError as error:
        return Problem("image cannot be read", str(error))
    return None


def _inspect_strips(
    mask: WindowedImage, size: tuple[int, int], mode: str, name: str, *, has_classes: bool
) -> Inspection | Problem:
    """The values of a mask, read in strips, beside an image of `size` (H, W) and `mode`."""
    pixels: Counter = Counter()
    samples: dict[Any, list[tuple[int, np.ndarray]]] = defaultdict(list)
    is_colored = False
    for top, strip in strips(mask):
        # all strips agree on `is_colored`: it follows from the channels and the type of the mask's file
        values, is_colored, _ = decode_mask(strip, name)
        counts = count_values(values)
        keys = pack(values).ravel()
        pixels.update(counts)
        if has_colors(pixels):  # grey levels, from strips without other colors, are colors too
            pixels = count_colors(pixels)
        problem = value_count_problem(pixels, name) if has_classes else None
        if problem:
            return problem
        for value, indices in _value_pixels(keys, counts):
            count = len(indices)
            evenly_spaced = np.linspace(0, count - 1, min(count, LOCATIONS)).astype(int)
            row, column = divmod(indices[evenly_spaced], values.shape[1])
            samples[value].append((count, np.stack([top + row, column], axis=1)))
    if has_colors(pixels):
        kind = "colors"
        greys = [value for value in samples if isinstance(value, int)]
        for value in greys:
            samples[as_color(value)] += samples.pop(value)
    else:
        kind = "greys" if is_colored else "numbers"
    locations = {value: _thin_samples(strips_with_value) for value, strips_with_value in samples.items()}
    return Inspection(size, mask.size, mode, kind, dict(pixels), locations)


def _value_pixels(keys: np.ndarray, counts: dict[MaskValue, int]) -> Iterator[tuple[MaskValue, np.ndarray]]:
    """Each value of a strip and the indices of its pixels, among `keys` (N,).

    If there are more values than a data set may have classes (numbers of objects, say), all but 0 count as one value,
    1.
    """
    if len(counts) > MAX_VALUES:
        if 0 in counts:
            yield 0, np.flatnonzero(keys == 0)
        yield 1, np.flatnonzero(keys)
        return
    for value in counts:
        yield value, np.flatnonzero(keys == value_key(value))


def _thin_samples(samples: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """At most `LOCATIONS` of the pixels sampled in strips.

    `samples` has for each strip the number of its pixels with the value, and some of these pixels; a strip is weighted
    by that number.
    """
    pixels = np.concatenate([sampled for _, sampled in samples])
    weights = np.concatenate([np.full(len(sampled), count / len(sampled)) for count, sampled in samples])
    rng = np.random.default_rng(0)  # the same on every start
    return rng.choice(pixels, min(len(pixels), LOCATIONS), replace=False, p=weights / weights.sum())
