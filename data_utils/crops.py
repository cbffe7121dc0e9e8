"""Where training crops are taken, and how masks follow their images to another size."""

from collections.abc import Callable, Sequence

import numpy as np

from data_utils.masks import IGNORE

CROPS_AROUND_CLASS = 1 / 3
Size = tuple[int, int]  # (H, W)
Window = tuple[tuple[int, int], tuple[int, int]]  # (top, bottom), (left, right)


def crop_window(mask: np.ndarray, crop: Size, rng: np.random.Generator) -> Window:
    """Where to crop `mask` (H, W) to at most `crop`: anywhere, or, one time in three, around a class.

    The class is any of those in the mask with equal chance, so that rare ones are seen as often as others, and one of
    its pixels lies in the crop. (nnU-Net takes a third of its patches around foreground.)
    """

    def pixel_of(choice: float, which: float) -> Sequence[int] | None:
        present = np.flatnonzero(np.bincount(mask.ravel(), minlength=256)[:IGNORE])
        if not len(present):
            return None
        pixels = np.flatnonzero(mask.ravel() == present[int(choice * len(present))])
        return np.unravel_index(pixels[int(which * len(pixels))], mask.shape)

    return _place(mask.shape, crop, rng, pixel_of)


def crop_around(places: list[np.ndarray], image: Size, size: Size, crop: Size, rng: np.random.Generator) -> Window:
    """As `crop_window` on an `image` resized to `size` of which only some `places` of each class are known."""

    def pixel_of(choice: float, which: float) -> Sequence[int] | None:
        if not places:
            return None
        of_class = places[int(choice * len(places))]
        pixel = of_class[int(which * len(of_class))]
        return [at * target // have for at, target, have in zip(pixel.tolist(), size, image, strict=True)]

    return _place(size, crop, rng, pixel_of)


def _place(
    size: Size, crop: Size, rng: np.random.Generator, pixel_of: Callable[[float, float], Sequence[int] | None]
) -> Window:
    favoured, choice, which = rng.random(3)
    starts = [int(rng.integers(max(have - want, 0) + 1)) for have, want in zip(size, crop, strict=True)]
    pixel = pixel_of(choice, which) if favoured < CROPS_AROUND_CLASS else None
    if pixel is not None:
        inside = rng.random(2)
        starts = [
            int(np.clip(at - int(part * want), 0, max(have - want, 0)))
            for at, part, have, want in zip(pixel, inside, size, crop, strict=True)
        ]
    rows, columns = ((at, min(at + want, have)) for at, want, have in zip(starts, crop, size, strict=True))
    return rows, columns


def nearest(want: int, have: int) -> np.ndarray:
    """(want,) for each pixel along a side resized from `have`: the one under its centre."""
    return ((2 * np.arange(want) + 1) * have) // (2 * want)


def resize_mask(mask: np.ndarray, size: Size) -> np.ndarray:
    """(H, W) or (H, W, 3) -> (*size, ...), each pixel the nearest one's value."""
    if mask.shape[:2] == tuple(size):
        return mask
    rows, columns = (nearest(want, have) for want, have in zip(size, mask.shape[:2], strict=True))
    return mask[rows][:, columns]
