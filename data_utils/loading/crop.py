"""Where training crops are taken."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_utils.image_io.resize import Size, Window

CROPS_AROUND_CLASS = 1 / 3  # such a share of the crops is taken around a class


def crop_window(labels: np.ndarray, unknown: int, crop_size: Size, rng: np.random.Generator) -> Window:
    """Where to crop `labels` (H, W) to at most `crop_size`: anywhere, or, one time in three, around a label.

    Each label in the image except `unknown` is drawn with equal chance, so that rare labels are seen as often as
    others; one of its pixels lies in the crop. (nnU-Net takes a third of its patches around foreground.)
    """
    position = _random_position(labels.shape, crop_size, rng)
    starts = position.starts
    if position.around_class:
        present = [label for label in _distinct(labels) if label != unknown]
        if present:
            label = present[int(position.class_share * len(present))]
            pixels = np.flatnonzero(labels.ravel() == label)
            pixel = np.unravel_index(pixels[int(position.pixel_share * len(pixels))], labels.shape)
            starts = _starts_around(pixel, labels.shape, crop_size, rng)
    return _window(starts, labels.shape, crop_size)


def _distinct(labels: np.ndarray) -> list[int]:
    """The labels in the image, in order."""
    if labels.dtype == np.uint8:  # counting is much faster than sorting
        return np.flatnonzero(np.bincount(labels.ravel())).tolist()
    return np.unique(labels).tolist()


def crop_around(
    class_locations: list[np.ndarray], mask_size: Size, size: Size, crop_size: Size, rng: np.random.Generator
) -> Window:
    """`crop_window` for a mask resized to `size` if only some pixels of each class are known.

    `class_locations` (n, axes) are pixels of the mask at its own size, `mask_size`.
    """
    position = _random_position(size, crop_size, rng)
    starts = position.starts
    if position.around_class and class_locations:
        locations = class_locations[int(position.class_share * len(class_locations))]
        pixel = locations[int(position.pixel_share * len(locations))]
        resized = []
        for offset, length, mask_length in zip(pixel.tolist(), size, mask_size, strict=True):
            resized.append(offset * length // mask_length)
        starts = _starts_around(resized, size, crop_size, rng)
    return _window(starts, size, crop_size)


class RandomPosition(NamedTuple):
    """The position of a crop.

    Args:
        around_class: whether the crop lies around a pixel of a class, if the image has classes.
        class_share: which class, as a share in [0, 1) of the number of classes.
        pixel_share: which of its pixels, as a share in [0, 1) of their number.
        starts: where the crop starts along each axis, if it lies around no class.
    """

    around_class: bool
    class_share: float
    pixel_share: float
    starts: list[int]


def _random_position(size: Size, crop_size: Size, rng: np.random.Generator) -> RandomPosition:
    """A position from random numbers; it takes as many whatever the image holds."""
    kind, class_share, pixel_share = rng.random(3)
    starts = [int(rng.integers(max(length - side, 0) + 1)) for length, side in zip(size, crop_size, strict=True)]
    return RandomPosition(kind < CROPS_AROUND_CLASS, class_share, pixel_share, starts)


def _starts_around(pixel: Sequence[int], size: Size, crop_size: Size, rng: np.random.Generator) -> list[int]:
    """Where crops start, along each axis, that have the pixel at a random position inside."""
    shares = rng.random(len(size))
    starts = []
    for position, share, length, side in zip(pixel, shares, size, crop_size, strict=True):
        start = position - int(share * side)
        starts.append(int(np.clip(start, 0, max(length - side, 0))))
    return starts


def _window(starts: Sequence[int], size: Size, crop_size: Size) -> Window:
    """Crops that start there, no larger than the whole."""
    return tuple(
        (start, min(start + side, length)) for start, side, length in zip(starts, crop_size, size, strict=True)
    )
