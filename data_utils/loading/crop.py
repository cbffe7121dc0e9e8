"""Where training crops are taken."""

from collections.abc import Sequence

import numpy as np

from data_utils.image_io.resize import Window

CROPS_AROUND_CLASS = 1 / 3
Size = tuple[int, ...]  # (H, W) or (D, H, W)


def crop_window(labels: np.ndarray, unknown: int, crop: Size, rng: np.random.Generator) -> Window:
    """Where to crop `labels` (H, W) to at most `crop`: anywhere, or, one time in three, around a label.

    It is any of those that there are, save the `unknown` one, with equal chance, so that rare ones are seen as often as
    others, and one of its pixels lies in the crop. (nnU-Net takes a third of its patches around foreground.)
    """
    around_class, choice, which, starts = _draw(labels.shape, crop, rng)
    if around_class:
        present = [label for label in _distinct(labels) if label != unknown]
        if present:
            pixels = np.flatnonzero(labels.ravel() == present[int(choice * len(present))])
            pixel = np.unravel_index(pixels[int(which * len(pixels))], labels.shape)
            starts = _starts_around(pixel, labels.shape, crop, rng)
    return _window(starts, labels.shape, crop)


def _distinct(labels: np.ndarray) -> list[int]:
    """The labels that there are, in order."""
    if labels.dtype == np.uint8:  # counting is much faster than sorting
        return np.flatnonzero(np.bincount(labels.ravel())).tolist()
    return np.unique(labels).tolist()


def crop_around(
    class_locations: list[np.ndarray], mask: Size, size: Size, crop: Size, rng: np.random.Generator
) -> Window:
    """As `crop_window` for a `mask` resized to `size` of which only some pixels (n, axes) of each class are known."""
    around_class, choice, which, starts = _draw(size, crop, rng)
    if around_class and class_locations:
        of_class = class_locations[int(choice * len(class_locations))]
        pixel = of_class[int(which * len(of_class))]
        resized = [at * target // have for at, target, have in zip(pixel.tolist(), size, mask, strict=True)]
        starts = _starts_around(resized, size, crop, rng)
    return _window(starts, size, crop)


def _draw(size: Size, crop: Size, rng: np.random.Generator) -> tuple[bool, float, float, list[int]]:
    """Draws: whether to crop around a class, which class and which of its pixels, and a start for other crops."""
    favoured, choice, which = rng.random(3)
    starts = [int(rng.integers(max(have - want, 0) + 1)) for have, want in zip(size, crop, strict=True)]
    return favoured < CROPS_AROUND_CLASS, choice, which, starts


def _starts_around(pixel: Sequence[int], size: Size, crop: Size, rng: np.random.Generator) -> list[int]:
    inside = rng.random(len(size))
    return [
        int(np.clip(at - int(part * want), 0, max(have - want, 0)))
        for at, part, have, want in zip(pixel, inside, size, crop, strict=True)
    ]


def _window(starts: Sequence[int], size: Size, crop: Size) -> Window:
    return tuple((at, min(at + want, have)) for at, want, have in zip(starts, crop, size, strict=True))
