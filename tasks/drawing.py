"""Masks and points on pictures, and slices of volumes: uint8, for prediction, trackers and the report."""

import colorsys
import math
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from data_utils.image_io.resize import resize_mask
from unet.config import IGNORE_INDEX, MaskValue

GREY = (128, 128, 128)
RED = (230, 30, 40)
COLUMNS_PER_OUTLINE_PIXEL = 800  # columns of a picture after which an outline is a pixel thicker
AREA_MARGIN = 2  # pixels between an area and the line around it
MIN_COLOR_DISTANCE = 200  # colors whose channels differ by less, together, are hard to tell apart
LINE_HEIGHT = 20  # pixels of a line of the legend
CLASSES_PER_ROUND = 6  # classes of a palette that share a saturation and a value
SATURATIONS_AND_VALUES = ((0.75, 0.95), (0.55, 1.0), (0.95, 0.65))  # one pair for each of successive rounds
SHOWN_CHANNELS = 3
PICTURE_LEVEL = 1  # of compression: a higher one makes photographs up to a fifth smaller in 3 to 8 times the time

SMALLEST_RADIUS = 3  # pixels of a point
RADIUS_SHARE = 1 / 150  # the radius of a point, as a share of the longer side of the picture
LINE_COLOR = (255, 255, 255)  # from a predicted point to the true one
LEAST_SIDE = 480  # a smaller picture is enlarged, so that points do not hide it

SHOWN_VOXELS = 3  # voxels through which slices of a predicted volume are shown
OTHER_AXES = ((1, 2), (0, 2), (0, 1))  # the axes of a slice along each axis

Limits = tuple[Any, Any]  # numbers, or arrays (SHOWN_CHANNELS,): the values shown as black and as white


def palette(num_classes: int) -> np.ndarray:
    """Distinct colors, uint8 (num_classes, 3). Class 0 is black; others do not depend on num_classes."""
    colors = np.zeros((num_classes, 3), np.uint8)
    for k in range(1, num_classes):
        # Golden-ratio steps keep hues apart however many there are; saturation and value tell rounds apart.
        hue = (0.58 + (k - 1) * 0.618034) % 1.0
        saturation, value = SATURATIONS_AND_VALUES[(k - 1) // CLASSES_PER_ROUND % len(SATURATIONS_AND_VALUES)]
        rgb = colorsys.hsv_to_rgb(hue, saturation, value)
        colors[k] = np.rint(np.multiply(rgb, 255))
    return colors


def class_colors(values: Sequence[MaskValue]) -> np.ndarray:
    """(num_classes, 3) uint8: the masks' own colors if the values are colors, a palette if they are numbers."""
    if isinstance(values[0], tuple):
        return np.array(values, np.uint8)
    return palette(len(values))


def colorize(mask: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """Class indices (H, W) as uint8 (H, W, 3); values without a color (255: ignored) are grey."""
    num_classes = len(colors)
    lookup = np.vstack([colors, [GREY]]).astype(np.uint8)
    return lookup[np.where((mask >= 0) & (mask < num_classes), mask, num_classes)]


def value_limits(image: np.ndarray) -> Limits:
    """The values of a picture (H, W[, C]) that are shown as black and as white: its 1st and 99th percentile.

    The channels share the limits, so that hues survive. A picture with more than SHOWN_CHANNELS bands has no hues: each
    shown band has limits of its own.
    """
    if image.ndim == 3 and image.shape[2] > SHOWN_CHANNELS:
        low, high = np.array([_limits(image[:, :, band]) for band in range(SHOWN_CHANNELS)]).T
        return low, high
    return _limits(image)


def _limits(image: np.ndarray) -> tuple[float, float]:
    """The numbers that are shown as black and as white; 0 and 0 if no number is finite."""
    finite = np.ma.getdata(image)[np.ma.filled(np.isfinite(image), False)]
    if not finite.size:
        return 0.0, 0.0
    low, high = np.percentile(finite, (1, 99))
    if low < high:
        return low, high
    # mostly one value, such as sparse labels on black: the extremes are all there is to see
    return finite.min(), finite.max()


def to_rgb(image: np.ndarray, limits: Limits | None = None) -> np.ndarray:
    """Any picture (H, W) or (H, W, C) as uint8 (H, W, 3).

    One or two channels (grey, grey and alpha) become grey, of more the first three are shown. Types other than uint8
    are stretched between `limits`, by default their own `value_limits`. Pixels without data are black.
    """
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] < 3:
        image = image[:, :, :1].repeat(3, axis=2)
    if image.dtype == np.uint8:
        return np.ma.filled(image[:, :, :SHOWN_CHANNELS], 0)
    image = np.ma.filled(image.astype(np.float64), np.nan)
    low, high = limits or value_limits(image)
    scaled = (image[:, :, :SHOWN_CHANNELS] - low) / np.where(high == low, 1.0, np.subtract(high, low))
    return np.rint(255 * np.nan_to_num(scaled, posinf=1, neginf=0).clip(0, 1)).astype(np.uint8)


def overlay(image: np.ndarray, mask: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """Image (H, W[, C]) tinted half and half by its mask (H, W), uint8 (H, W, 3). Class 0 stays untinted."""
    rgb = to_rgb(image)
    blend = ((rgb.astype(np.uint16) + colorize(mask, colors) + 1) >> 1).astype(np.uint8)
    return np.where((mask == 0)[:, :, None], rgb, blend)


def contours(mask: np.ndarray, thickness: int = 1) -> np.ndarray:
    """Pixels of class indices (H, W), not of class 0, within `thickness` of another class along an axis."""
    is_contour = np.zeros(mask.shape, bool)
    for distance in range(1, thickness + 1):
        padded = np.pad(mask, distance, mode="edge")
        inside = slice(distance, -distance)
        shifted = [padded[: -2 * distance, inside], padded[2 * distance :, inside]]
        shifted += [padded[inside, : -2 * distance], padded[inside, 2 * distance :]]
        for neighbor in shifted:
            is_contour |= neighbor != mask
    return is_contour & (mask != 0)


def outline_width(picture: np.ndarray) -> int:
    """How many pixels wide outlines are on a picture (H, W)."""
    return 1 + picture.shape[1] // COLUMNS_PER_OUTLINE_PIXEL


def outlined_overlay(image: np.ndarray, mask: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """An `overlay` whose areas have an outline: in their color, or black or white if the image is similar."""
    picture = overlay(image, mask, colors)
    edges = contours(mask, outline_width(mask))
    below = to_rgb(image)[edges]
    picture[edges] = readable_colors(colorize(mask[edges][None], colors)[0], below)
    return picture


def readable_colors(colors: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Colors (n, 3) of outlines, black or white where they are similar to the pixels `below`, (n, 3) uint8."""
    background = below.astype(int)
    is_alike = np.abs(colors.astype(int) - background).sum(axis=1) < MIN_COLOR_DISTANCE
    is_dark = background.sum(axis=1) < 3 * 128
    readable = colors.copy()
    readable[is_alike & is_dark] = 255
    readable[is_alike & ~is_dark] = 0
    return readable


def outline_areas(picture: np.ndarray, areas: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    """A picture (H, W, 3) with a line around areas, booleans (h, w) of any size; even the smallest area gets a line."""
    from scipy.ndimage import binary_dilation

    height, width = picture.shape[:2]
    # the mean over a pixel of the picture is above 0 where an area reaches into it
    covered = Image.fromarray(areas.astype(np.float32)).resize((width, height), Image.Resampling.BOX)
    inside = binary_dilation(np.asarray(covered) > 0, iterations=1 + AREA_MARGIN)
    outlined = picture.copy()
    outlined[contours(inside)] = color
    return outlined


def outline_classes(image: np.ndarray, bits: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """Image (H, W[, C]) with the outlines of classes that may overlap, uint8 (H, W, 3); later ones lie over others.

    Args:
        bits: (H, W), bit k where class k is.
        colors: (classes, 3).
    """
    picture = to_rgb(image).copy()
    for bit, color in enumerate(colors):
        picture[contours(bits >> bit & 1, outline_width(bits))] = color
    return picture


def legend(names: Sequence[str], colors: np.ndarray, background: int | None = None) -> Image.Image:
    """A picture of names, each behind a square of its color in overlays; `background`, which has no tint, has none."""
    lines = [f"{name} (no tint)" if number == background else name for number, name in enumerate(names)]
    width = max(map(ImageFont.load_default().getlength, lines))
    picture = Image.new("RGB", (2 * LINE_HEIGHT + int(width), LINE_HEIGHT * len(lines)), "white")
    pen = ImageDraw.Draw(picture)
    for number, line in enumerate(lines):
        top = number * LINE_HEIGHT
        if number != background:
            pen.rectangle((4, top + 4, LINE_HEIGHT - 5, top + LINE_HEIGHT - 5), fill=tuple(colors[number].tolist()))
        pen.text((LINE_HEIGHT, top + 4), line, fill="black")
    return picture


def darken(image: np.ndarray) -> np.ndarray:
    """An image (H, W[, C]) in dark grey, uint8 (H, W, 3), to mark errors on."""
    return np.repeat(to_rgb(image).mean(axis=2, keepdims=True) * 0.35, 3, axis=2).astype(np.uint8)


def mark_errors(image: np.ndarray, truth: np.ndarray, pred: np.ndarray, num_classes: int) -> np.ndarray:
    """Wrong pixels red and ignored ones (truth without a class) grey over the darkened image, uint8 (H, W, 3)."""
    errors = darken(image)
    errors[truth != pred] = RED
    errors[(truth < 0) | (truth >= num_classes)] = GREY
    return errors


def join_in_row(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures of one size (H, W, 3) side by side, with white separators."""
    separated = [np.pad(picture, ((0, 0), (0, 2), (0, 0)), constant_values=255) for picture in pictures]
    return np.hstack(separated)[:, :-2]


def save_picture(file: IO[bytes] | Path, picture: np.ndarray) -> None:
    """Write a picture, (H, W, 3) uint8, as a PNG."""
    Image.fromarray(picture).save(file, "png", compress_level=PICTURE_LEVEL)


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
    truth: np.ndarray | None = None,
    spacing: Sequence[float] | None = None,
) -> np.ndarray:
    """A picture (H, W[, C]) with points, uint8 (H', W', 3): discs for predictions, rings for truth, joined by lines.

    Of a volume (D, H, W, C) it is the `orthogonal_slices` through the middle of the points. Every point is drawn on
    each slice, however far before or behind the slice it lies.

    Args:
        predicted, truth: (K, axes) positions in pixels, the center of the first is 0; points at NaN are not drawn.
        spacing: (z, y, x) in mm, of a volume.
    """
    colors = point_colors(len(predicted))
    if truth is None:
        truth = np.full_like(predicted, np.nan)
    if spacing is not None:
        size = image.shape[:3]
        center = _middle_voxel(size, truth, predicted)
        image = to_rgb(orthogonal_slices(image, center, spacing), value_limits(image[center[0]]))
        predicted = _on_slices(predicted, size, spacing)
        truth = _on_slices(truth, size, spacing)
        colors = np.tile(colors, (3, 1))
    rgb, factor = enlarge_picture(to_rgb(image))
    picture = Image.fromarray(rgb)
    pen = ImageDraw.Draw(picture)
    radius = max(SMALLEST_RADIUS, round(max(picture.size) * RADIUS_SHARE))
    ring_width = max(2, radius // 4)  # rings, too, are still there when a large picture is reduced
    found_spots = _spots(predicted, factor)
    true_spots = _spots(truth, factor)
    for number, spot in true_spots.items():
        if number in found_spots:
            ends = [spot, found_spots[number]]
            pen.line(ends, fill=(0, 0, 0), width=radius // 3 + 2)  # its edge, on bright ground
            pen.line(ends, fill=LINE_COLOR, width=radius // 3)
    for number, color in enumerate(colors.tolist()):
        if number in found_spots:
            _disc(pen, found_spots[number], radius, fill=tuple(color), outline=(0, 0, 0))
        if number in true_spots:
            _disc(pen, true_spots[number], radius + ring_width, outline=tuple(color), width=ring_width)
    return np.asarray(picture)


def _spots(points: np.ndarray, factor: int) -> dict[int, tuple[float, float]]:
    """(x, y) in an enlarged picture of each position (y, x) that is drawn, by its number."""
    spots = {}
    for number, (y, x) in enumerate(((points + 0.5) * factor - 0.5).tolist()):
        if math.isfinite(y + x):
            spots[number] = (x, y)
    return spots


def _middle_voxel(size: Sequence[int], *alternatives: np.ndarray) -> list[int]:
    """The voxel in the middle of the first points (K, 3) of which some are drawn; else that of the volume."""
    middle = (np.array(size) - 1) / 2
    for points in alternatives:
        drawn = points[np.isfinite(points).all(axis=1)]
        if len(drawn):
            middle = drawn.mean(axis=0)
            break
    return middle.round().astype(int).clip(0, np.array(size) - 1).tolist()


def _disc(pen: ImageDraw.ImageDraw, center: tuple[float, float], radius: int, **options: object) -> None:
    x, y = center
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), **options)  # type: ignore[arg-type]


def busiest_voxel(mask: np.ndarray) -> tuple[int, ...]:
    """For each axis of class indices (D, H, W), the slice with the most voxels of any class except the first."""
    is_shown = (mask > 0) & (mask != IGNORE_INDEX)
    voxel = []
    for axis in range(3):
        sums = is_shown.sum(axis=OTHER_AXES[axis])
        index = len(sums) // 2
        if sums.any():
            index = int(sums.argmax())
        voxel.append(index)
    return tuple(voxel)


def spread_voxels(mask: np.ndarray) -> list[list[int]]:
    """`SHOWN_VOXELS` voxels (z, y, x), spread along each axis over the slices of (D, H, W) that are not all 0."""
    positions = []
    for axis in range(3):
        occupied = np.flatnonzero(mask.any(axis=OTHER_AXES[axis]))
        if not len(occupied):
            occupied = np.arange(mask.shape[axis])
        positions.append(np.linspace(occupied[0], occupied[-1], SHOWN_VOXELS + 2)[1:-1])
    return np.transpose(positions).round().astype(int).tolist()


def orthogonal_slices(volume: np.ndarray, at: Sequence[int], spacing: Sequence[float], fill: float = 0) -> np.ndarray:
    """The slices through the voxel `at` in one picture, (h, w[, C]): axial, to its right sagittal, below it coronal.

    The volume (D, H, W[, C]) is in RAS orientation, the spacing (z, y, x) in mm. The patient's right is on the left,
    anterior is up, superior is up in the coronal slice and on the right in the sagittal one. `fill` is the value of the
    corner between the slices.
    """
    z, y, x = at
    depth, height, width = _slice_sides(volume.shape, spacing)
    picture = np.full((height + depth, width + depth, *volume.shape[3:]), fill, volume.dtype)
    picture[:height, :width] = resize_mask(volume[z], (height, width))[::-1, ::-1]
    picture[:height, width:] = resize_mask(volume[:, :, x].swapaxes(0, 1), (height, depth))[::-1]
    picture[height:, :width] = resize_mask(volume[:, y], (depth, width))[::-1, ::-1]
    return picture


def _slice_sides(size: Sequence[int], spacing: Sequence[float]) -> list[int]:
    """Pixels of the depth, height and width of a volume in pictures, in which the finest spacing is a pixel."""
    finest = min(spacing)
    return [max(1, round(length * mm / finest)) for length, mm in zip(size, spacing, strict=False)]


def _on_slices(points: np.ndarray, size: Sequence[int], spacing: Sequence[float]) -> np.ndarray:
    """(3 K, 2): the points (K, 3) on each of the three `orthogonal_slices` of a volume, in pixels of their picture."""
    depth, height, width = _slice_sides(size, spacing)
    scale = np.array([depth, height, width]) / size
    z, y, x = ((points + 0.5) * scale - 0.5).T
    row = height - 1 - y
    column = width - 1 - x
    axial = np.column_stack([row, column])
    sagittal = np.column_stack([row, width + z])
    coronal = np.column_stack([height + depth - 1 - z, column])
    return np.concatenate([axial, sagittal, coronal])
