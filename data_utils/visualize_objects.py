"""Pictures of numbered objects: outlines in colors that differ between touching objects."""

from collections.abc import Iterable, Sequence

import numpy as np

from data_utils.visualize import COLUMNS_PER_OUTLINE_PIXEL, contours, palette, readable_colors, to_rgb

COLORS = palette(13)  # 0 is no object
SHADES = len(COLORS) - 1


def touching_pairs(labels: np.ndarray) -> np.ndarray:
    """(N, 2): each pair of different numbers above 0 that pixels of `labels` hold side by side, smaller one first."""
    pairs = []
    for axis in range(labels.ndim):
        last = labels.shape[axis] - 1
        first = labels.take(range(last), axis)
        second = labels.take(range(1, last + 1), axis)
        differ = (first != second) & (first > 0) & (second > 0)
        pairs.append(np.stack([first[differ], second[differ]], axis=1))
    return np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)


def choose_shades(count: int, pairs: Iterable[Sequence[int]]) -> np.ndarray:
    """(count + 1,) uint8: a color of COLORS for each number, which no number that it touches has.

    Numbers get colors in turn, so that others nearby differ too. A number that touches objects of all colors gets any
    color.
    """
    neighbors: dict[int, list[int]] = {}
    for first, second in pairs:
        neighbors.setdefault(max(first, second), []).append(min(first, second))
    shades = np.arange(count + 1, dtype=np.int64)
    shades[1:] = shades[:-1] % SHADES + 1
    for number in sorted(neighbors):
        neighbor_shades = {shades[neighbor] for neighbor in neighbors[number]}
        for _ in range(SHADES):
            if shades[number] not in neighbor_shades:
                break
            shades[number] = shades[number] % SHADES + 1
    return shades.astype(np.uint8)


def shade_objects(labels: np.ndarray) -> np.ndarray:
    """The color, as an index of COLORS, of each pixel of numbered objects; numbers may have gaps."""
    numbers, indices = np.unique(labels, return_inverse=True)
    if numbers[0] != 0:
        indices = indices + 1
    compact = indices.reshape(labels.shape)
    return choose_shades(compact.max(), touching_pairs(compact).tolist())[compact]


def outline_objects(image: np.ndarray, shades: np.ndarray) -> np.ndarray:
    """Image (H, W[, C]) with the outlines of objects, given the color of each pixel (H, W); uint8 (H, W, 3)."""
    picture = to_rgb(image).copy()
    edges = contours(shades, thickness=1 + shades.shape[1] // COLUMNS_PER_OUTLINE_PIXEL)
    picture[edges] = readable_colors(COLORS[shades[edges]], below=picture[edges])
    return picture
