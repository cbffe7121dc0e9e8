"""The inspection of images: a header, and points or every pixel of a mask, in strips if the image is large."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from data_utils.analysis.inspection import (
    ClassLocations,
    Inspection,
    Problem,
    UnusableRecord,
    point_locations,
    problem_of_kind,
)
from data_utils.analysis.problems import check_proportions, check_values
from data_utils.image_io.formats import ImageSource, PointSource
from data_utils.image_io.reader import decode_mask, read_header, read_image
from data_utils.image_io.windowed import WindowedImage, open_if_large, open_windowed, strips
from data_utils.mask_values import MAX_VALUES, as_color, count_colors, count_values, has_colors, pack, value_key
from data_utils.sources.points.spaces import to_pixels
from data_utils.sources.records import Record
from runtime.errors import DataError
from unet.config import MaskValue

LOCATIONS = 64  # pixels of each class that are remembered, for crops around them


def inspect_header(record: Record) -> tuple[tuple[int, int], str]:
    """Size and mode of an image, whose pixels are read if they may be infinite. Raises DataError."""
    size, mode = read_header(record["image"], f"{record['name']}: image")
    if _may_be_infinite(mode):
        read_image(record["image"], record["name"])
    return size, mode


def _may_be_infinite(mode: str) -> bool:
    """Whether the pixels of an image of a mode are floating-point numbers, which are read to find infinite ones."""
    return mode == "F" or mode.startswith("float")


def inspect_points(record: Record, *, windows: bool = False) -> Inspection:
    """The inspection of the header of an image; with `windows`, a large image also gets the pixels of its points."""
    name = record["name"]
    source = record["target"]
    assert isinstance(source, PointSource)
    with problem_of_kind("image cannot be read"):
        size, mode = inspect_header(record)
    with problem_of_kind("points of an image of another shape"):
        pixels = to_pixels(source, size, name)
    locations: ClassLocations | None = None
    if windows:
        with open_if_large(record["image"]) as picture:
            if picture is not None:
                locations = point_locations(pixels, source, size)
    return Inspection(size, size, mode, "numbers", {}, locations)


def count_channels(source: ImageSource, name: str, *, windows: bool) -> int:
    """How many channels an image has; all of it is decoded, in strips if it is large. Raises DataError."""
    if windows:
        with open_if_large(source) as picture:
            if picture is not None:
                return max(read_image(strip, name).shape[2] for _, strip in strips(picture))
    return read_image(source, name).shape[2]


def inspect_image(record: Record, *, has_classes: bool = True, windows: bool = False) -> Inspection:
    """The inspection of the header of an image, of all pixels if they may be infinite, and of all of its mask.

    Args:
        has_classes: whether the values of masks are classes: few, and not smoothed.
        windows: whether a large image is read in windows; then some pixels of each value are remembered, (n, 2) as
            (row, column).

    Raises UnusableRecord.
    """
    if not windows or isinstance(record["target"], bytes):
        return _inspect_whole(record, has_classes=has_classes)
    with open_if_large(record["image"]) as image:
        if image is None:
            return _inspect_whole(record, has_classes=has_classes)
        return _inspect_in_strips(record, image, has_classes=has_classes)


def _inspect_whole(record: Record, *, has_classes: bool) -> Inspection:
    name = record["name"]
    with problem_of_kind("image cannot be read"):
        size, mode = inspect_header(record)
    with problem_of_kind("mask cannot be read"):
        mask, is_colored, is_jpeg = decode_mask(record["target"], name)
    check_proportions(name, size, mask.shape[:2])
    pixels = count_values(mask)
    if has_classes:
        check_values(name, pixels, is_jpeg=is_jpeg)
    kind = "numbers"
    if mask.ndim == 3:
        kind = "colors"
    elif is_colored:
        kind = "greys"
    return Inspection(size, mask.shape[:2], mode, kind, pixels)


def _inspect_in_strips(record: Record, image: WindowedImage, *, has_classes: bool) -> Inspection:
    """The inspection of a large image, whose mask is read in strips."""
    name = record["name"]
    try:
        with open_windowed(record["target"]) as mask:
            check_proportions(name, image.size, mask.size)
            first = np.asarray(image.read(0, 1))
            mode = f"{first.dtype} x {first[0, 0].size}"
            if _may_be_infinite(mode):
                with problem_of_kind("image cannot be read"):
                    for _, strip in strips(image):
                        read_image(strip, name)
            inspection = _inspect_strips(mask, image.size, mode, name, has_classes=has_classes)
    except DataError as error:
        text = f"{name}: {error}; store large masks as tiled TIFF"
        raise UnusableRecord(Problem("cannot be read in windows", text)) from error
    if has_classes:
        is_jpeg = str(record["target"]).lower().endswith((".jpg", ".jpeg"))
        check_values(name, inspection.pixels, is_jpeg=is_jpeg)
    return inspection


def _inspect_strips(
    mask: WindowedImage, size: tuple[int, int], mode: str, name: str, *, has_classes: bool
) -> Inspection:
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
        if has_classes:
            check_values(name, pixels)
        for value, indices in _value_pixels(keys, counts):
            count = len(indices)
            evenly_spaced = np.linspace(0, count - 1, min(count, LOCATIONS)).astype(int)
            row, column = divmod(indices[evenly_spaced], values.shape[1])
            samples[value].append((count, np.stack([top + row, column], axis=1)))
    kind = "greys" if is_colored else "numbers"
    if has_colors(pixels):
        kind = "colors"
        for value in [value for value in samples if isinstance(value, int)]:
            samples[as_color(value)] += samples.pop(value)
    locations: ClassLocations = {value: _thin_samples(parts) for value, parts in samples.items()}
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
