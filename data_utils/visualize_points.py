"""Points on pictures: truth, prediction, and the line between the two."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from data_utils.image_io.resize import resize_image
from data_utils.visualize import palette, to_rgb, value_limits

SMALLEST_RADIUS = 3  # pixels
RADIUS_SHARE = 1 / 150  # the radius of a point, as a share of the longer side of the picture
LINE_COLOR = (255, 255, 255)
PLANE_SIDE = 360  # pixels of a volume's longest side on its picture
LEAST_SIDE = 480  # a smaller picture is enlarged, so that points do not hide it


def point_colors(count: int) -> np.ndarray:
    """(count, 3) uint8, a color for each point."""
    return palette(count + 1)[1:]


def enlarge_picture(image: np.ndarray) -> tuple[np.ndarray, int]:
    """A picture (H, W, 3) enlarged enough to show points, and the factor of the enlargement."""
    factor = max(1, round(LEAST_SIDE / max(image.shape[:2])))
    return image.repeat(factor, axis=0).repeat(factor, axis=1), factor


def render_points(
    image: np.ndarray,
    predicted: np.ndarray,
    is_found: np.ndarray,
    truth: np.ndarray | None = None,
    is_true: np.ndarray | None = None,
) -> np.ndarray:
    """A picture (H, W[, C]) with points, uint8 (H', W', 3): discs for predictions, rings for truth, joined by lines.

    Args:
        predicted, truth: (K, 2) positions (y, x) in pixels; the center of the first is 0.
        is_found, is_true: (K,) bool, which points of each are drawn.
    """
    rgb, factor = enlarge_picture(to_rgb(image))
    picture = Image.fromarray(rgb)
    pen = ImageDraw.Draw(picture)
    radius = max(SMALLEST_RADIUS, round(max(picture.size) * RADIUS_SHARE))
    colors = point_colors(len(predicted))
    found_spots = [_spot(position, factor) for position in predicted]
    true_spots = {}
    if truth is not None and is_true is not None:
        true_spots = {number: _spot(truth[number], factor) for number in np.flatnonzero(is_true).tolist()}
    for number, spot in true_spots.items():
        if is_found[number]:
            pen.line([spot, found_spots[number]], fill=LINE_COLOR, width=radius // 3)
    for number, color in enumerate(colors.tolist()):
        if is_found[number]:
            _disc(pen, found_spots[number], radius, fill=tuple(color), outline=(0, 0, 0))
        if number in true_spots:
            _disc(pen, true_spots[number], radius + 2, outline=tuple(color), width=2)
    return np.asarray(picture)


def render_volume_points(
    voxels: np.ndarray,
    spacing: Sequence[float],
    predicted: np.ndarray,
    is_found: np.ndarray,
    truth: np.ndarray | None = None,
    is_true: np.ndarray | None = None,
) -> np.ndarray:
    """A volume (D, H, W, C) with its points, drawn as in `render_points`, on three planes through their middle.

    Every point is drawn on each plane, however far before or behind the plane it lies. Superior and anterior are up.
    """
    shown_points = predicted[is_found]
    if truth is not None and is_true is not None and is_true.any():
        shown_points = truth[is_true]
    size = np.array(voxels.shape[:3])
    middle = shown_points.mean(axis=0) if len(shown_points) else (size - 1) / 2
    center = middle.round().astype(int).clip(0, size - 1)
    limits = value_limits(voxels[center[0]])
    scale = PLANE_SIDE / (size * spacing).max()
    pictures = []
    for axis in range(3):
        rows, columns = [other for other in range(3) if other != axis]
        plane = to_rgb(np.take(voxels, center[axis], axis), limits)
        height = max(1, round(size[rows] * spacing[rows] * scale))
        width = max(1, round(size[columns] * spacing[columns] * scale))
        resized = resize_image(plane, (height, width))[::-1]
        factors = np.array([height / size[rows], width / size[columns]])
        spots = _points_on_plane(predicted[:, [rows, columns]], factors, height)
        true_spots = None if truth is None else _points_on_plane(truth[:, [rows, columns]], factors, height)
        pictures.append(render_points(resized, spots, is_found, true_spots, is_true))
    tallest = max(len(picture) for picture in pictures)
    padded = [np.pad(picture, ((0, tallest - len(picture)), (0, 2), (0, 0))) for picture in pictures]
    return np.hstack(padded)


def _points_on_plane(points: np.ndarray, factors: np.ndarray, height: int) -> np.ndarray:
    """Positions (K, 2) of a plane that is resized by `factors` to so many rows, and turned upside down."""
    spots = (points + 0.5) * factors - 0.5
    spots[:, 0] = height - 1 - spots[:, 0]
    return spots


def _spot(position: np.ndarray, factor: int) -> tuple[float, float]:
    """(x, y) in an enlarged picture of a position (y, x)."""
    y, x = np.nan_to_num((position + 0.5) * factor - 0.5).tolist()
    return x, y


def _disc(pen: ImageDraw.ImageDraw, center: tuple[float, float], radius: int, **options: object) -> None:
    x, y = center
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), **options)  # type: ignore[arg-type]
