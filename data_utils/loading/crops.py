"""Where training crops are taken: anywhere, or around a class."""

from collections.abc import Callable

import numpy as np

from data_utils.image_io.resize import Size, Window

CROPS_AROUND_CLASS = 1 / 3  # such a share of the crops is taken around a class


def crop_window(labels: np.ndarray, unknown: int, crop_size: Size, rng: np.random.Generator) -> Window:
    """Where to crop `labels` (H, W) to at most `crop_size`: anywhere, or, one time in three, around a label.

    Each label in the image except `unknown` is drawn with equal chance, so that rare labels are seen as often as
    others; one of its pixels lies in the crop. (nnU-Net takes a third of its patches around foreground.)
    """

    def find_pixel(class_share: float, pixel_share: float) -> np.ndarray | None:
        present = [label for label in _distinct(labels) if label != unknown]
        if not present:
            return None
        label = present[int(class_share * len(present))]
        pixels = np.flatnonzero(labels.ravel() == label)
        return np.array(np.unravel_index(pixels[int(pixel_share * len(pixels))], labels.shape))

    return _draw(labels.shape, crop_size, rng, find_pixel)


def _distinct(labels: np.ndarray) -> list[int]:
    """The labels in the image, in order."""
    if labels.dtype == np.uint8:  # counting is much faster than sorting
        return np.flatnonzero(np.bincount(labels.ravel())).tolist()
    return np.unique(labels).tolist()


def crop_around(
    class_locations: list[np.ndarray], own_size: Size, size: Size, crop_size: Size, rng: np.random.Generator
) -> Window:
    """`crop_window` for a mask resized to `size` if only some pixels of each class are known.

    `class_locations` (n, axes) are pixels of the image or volume at its own size, `own_size`.
    """

    def find_pixel(class_share: float, pixel_share: float) -> np.ndarray | None:
        if not class_locations:
            return None
        locations = class_locations[int(class_share * len(class_locations))]
        return locations[int(pixel_share * len(locations))] * size // own_size

    return _draw(size, crop_size, rng, find_pixel)


def _draw(
    size: Size, crop_size: Size, rng: np.random.Generator, find_pixel: Callable[[float, float], np.ndarray | None]
) -> Window:
    """A random window, no larger than the whole.

    Args:
        find_pixel: gives a pixel of a class that the crop has inside, from two numbers in [0, 1): the class as a share
            of the number of classes, and the pixel as a share of its pixels; None if there is no class.
    """
    kind, class_share, pixel_share = rng.random(3)
    last_starts = [max(length - side, 0) for length, side in zip(size, crop_size, strict=True)]
    starts = [int(rng.integers(last + 1)) for last in last_starts]
    pixel = find_pixel(class_share, pixel_share) if kind < CROPS_AROUND_CLASS else None
    if pixel is not None:
        place_in_crop = (rng.random(len(size)) * crop_size).astype(int)
        starts = (pixel - place_in_crop).clip(0, last_starts).tolist()
    ends = [min(start + side, length) for start, side, length in zip(starts, crop_size, size, strict=True)]
    return tuple(zip(starts, ends, strict=True))
