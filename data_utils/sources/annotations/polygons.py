"""Polygons: their points checked, and filled by Pillow's rule."""

from typing import Any

import numpy as np
from PIL import ImageDraw

from runtime.errors import DataError

FARTHEST = 1e6  # pixels from the image's corner: what lies beyond is no coordinate


def checked_points(points: Any, where: str, least: int = 3) -> np.ndarray:
    """Points (n, 2) float64 as (x, y), from pairs or from one flat list. Raises DataError, with `where`."""
    try:
        flat = np.array(points, np.float64).ravel()
    except (TypeError, ValueError):  # text, objects, lists of different lengths
        raise DataError(f"{where} has points that are not pairs of numbers") from None
    if flat.size % 2:
        raise DataError(f"{where} has {flat.size} coordinates, an odd number")
    if flat.size < 2 * least:
        raise DataError(f"{where} has {flat.size // 2} points, at least {least} are needed")
    if not (np.abs(flat) < FARTHEST).all():  # NaN too
        raise DataError(f"{where} has a coordinate that is NaN, infinite or far outside the image")
    return flat.reshape(-1, 2)


def fill(picture: ImageDraw.ImageDraw, points: np.ndarray, value: int) -> None:
    """Fill a polygon (n, 2) with its outline."""
    picture.polygon(points.ravel().tolist(), fill=value, outline=value)


def area(points: np.ndarray) -> float:
    """Of a polygon (n, 2), in square units of its points, by the shoelace formula."""
    x, y = points.T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2
