"""Holes of objects."""

import numpy as np


def holes(is_object: np.ndarray) -> np.ndarray:
    """The number of the hole that each pixel lies in, from 1, and 0 for pixels in none; int32.

    A hole is an area that an object (H, W) or (D, H, W) encloses: no way through sides or corners leads out of it.
    """
    from scipy.ndimage import generate_binary_structure, label

    around = np.pad(~is_object, 1, constant_values=True)
    regions, _ = label(around, generate_binary_structure(is_object.ndim, is_object.ndim))
    inner = (slice(1, -1),) * is_object.ndim
    return np.maximum(regions[inner] - 1, 0)  # the first region is the outside


def has_hole(is_object: np.ndarray) -> bool:
    """Whether an object encloses anything."""
    return min(is_object.shape) > 2 and bool(holes(is_object).any())
