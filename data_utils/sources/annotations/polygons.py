"""Polygons: their points checked, and filled by Pillow's rule."""

from typing import Any

import numpy as np
from PIL import ImageDraw

from data_utils.image_io.reader import size_mismatch
from data_utils.image_io.resize import same_proportions
from runtime.errors import DataError

MAX_PIXEL_DISTANCE = 1e6  # pixels from the image's corner: a larger number is not a coordinate
# annotations may be made at so many times the picture's sides: some pictures are made smaller after they are annotated
MOST_TIMES = 8


def read_points(points: Any, location: str, least: int = 3) -> np.ndarray:
    """Points (n, 2) float64 as (x, y), from pairs or from one flat list. Raises DataError, with `location`."""
    try:
        flat = np.array(points, np.float64).ravel()
    except (TypeError, ValueError):  # text, objects, lists of different lengths
        raise DataError(f"{location} has points that are not pairs of numbers") from None
    if flat.size % 2:
        raise DataError(f"{location} has {flat.size} coordinates, an odd number")
    if flat.size < 2 * least:
        raise DataError(f"{location} has {flat.size // 2} points, at least {least} are needed")
    if not (np.abs(flat) < MAX_PIXEL_DISTANCE).all():  # NaN too
        raise DataError(f"{location} has a coordinate that is NaN, infinite or far outside the image")
    return flat.reshape(-1, 2)


def check_rendered_size(size: tuple[int, int], picture: tuple[int, int], location: str) -> None:
    """Raises DataError, with `location`, unless annotations made at `size` (H, W) fit `picture` (H, W), maybe resized.

    So the memory that rendering takes depends on the picture, not on a number in a file.
    """
    if not same_proportions(size, picture):
        raise DataError(size_mismatch(location, picture, size))
    if max(size) > MOST_TIMES * max(picture):
        raise DataError(
            f"{location}: the file gives it {size[0]:,} x {size[1]:,} pixels (height x width), but the picture has"
            f" {picture[0]:,} x {picture[1]:,}; correct the size in the file"
        )


def clip_polygon(points: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A polygon (n, 2) cut to a frame that extends beyond a picture (H, W) by the picture's size on each side.

    A polygon inside the frame is returned unchanged. Rendering takes memory for each pixel of an outline, also outside.
    By the algorithm of Sutherland & Hodgman (1974): the polygon is cut along each side of the frame in turn.
    """
    height, width = size
    frame = ((0, -width, 1), (0, 2 * width, -1), (1, -height, 1), (1, 2 * height, -1))
    for axis, border, sign in frame:
        inside = sign * (points[:, axis] - border) >= 0
        if inside.all():
            continue
        corners = []
        for index in range(len(points)):
            start = points[index - 1]
            end = points[index]
            if inside[index] != inside[index - 1]:
                share = (border - start[axis]) / (end[axis] - start[axis])
                corners.append(start + share * (end - start))
            if inside[index]:
                corners.append(end)
        if not corners:
            return points[:0]
        points = np.stack(corners)
    return points


def fill(picture: ImageDraw.ImageDraw, points: np.ndarray, value: int) -> None:
    """Fill a polygon (n, 2) with its outline."""
    points = clip_polygon(points, picture.im.size[::-1])
    if not len(points):
        return
    picture.polygon(points.ravel().tolist(), fill=value)


def area(points: np.ndarray) -> float:
    """The area of a polygon (n, 2), in square units of its points, by the shoelace formula."""
    x, y = points.T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2
