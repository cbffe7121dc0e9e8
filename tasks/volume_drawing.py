"""Volumes as pictures: slices in three planes, with masks or points."""

from collections.abc import Sequence

import numpy as np

from data_utils.image_io.resize import resize_image, resize_mask
from tasks.drawing import contours, render_points, to_rgb, value_limits
from unet.config import IGNORE_INDEX

PAGE_SIDE = 320  # pixels of a volume's longest side on its page
PLANE_SIDE = 360  # pixels of a volume's longest side on the picture of its points
PAGE_SLICES = 4  # slices of each plane on a volume's page
OTHER_AXES = ((1, 2), (0, 2), (0, 1))  # the axes of a slice along each axis


def slices_of_interest(mask: np.ndarray, count: int) -> list[list[int]]:
    """Along each axis of class indices (D, H, W), `count` slices through the most frequent class except class 0.

    If there is no such class, the slices go through the whole volume. Ignored voxels (255) are not a class.
    """
    counts = np.zeros(IGNORE_INDEX + 1, np.int64)
    for plane in mask:
        counts += np.bincount(plane.ravel(), minlength=len(counts))
    counts[[0, IGNORE_INDEX]] = 0
    inside = np.ones_like(mask, bool)
    if counts.any():
        inside = mask == counts.argmax()
    slices = []
    for axis in range(3):
        occupied = np.flatnonzero(inside.any(axis=OTHER_AXES[axis]))
        positions = np.linspace(occupied[0], occupied[-1], count + 2)[1:-1]
        slices.append(np.rint(positions).astype(int).tolist())
    return slices


def volume_page(
    image: np.ndarray, mask: np.ndarray, colors: np.ndarray, spacing: Sequence[float], count: int = PAGE_SLICES
) -> np.ndarray:
    """Rows of axial, coronal and sagittal slices of a volume, its mask as a tint with contours, uint8 (H', W', 3).

    Image (D, H, W, C) and class indices (D, H, W) in RAS orientation, spacing (z, y, x) in mm. Superior and anterior
    are up, the patient's right is on the left, as radiologists have it.
    """
    slices = slices_of_interest(mask, count)
    planes = []
    for axis, indices in enumerate(slices):
        planes += [np.take(image, index, axis) for index in indices]
    limits = value_limits(np.concatenate([plane.ravel() for plane in planes]))
    scale = PAGE_SIDE / max(length * mm for length, mm in zip(mask.shape, spacing, strict=True))
    rows = []
    for axis, indices in enumerate(slices):
        height, width = (max(1, round(mask.shape[other] * spacing[other] * scale)) for other in OTHER_AXES[axis])
        size = (height, width)
        pictures = []
        for index in indices:
            plane = resize_image(to_rgb(np.take(image, index, axis), limits), size)
            classes = resize_mask(np.take(mask, index, axis), size)
            pictures.append(_outline_classes(plane, classes, colors)[::-1, ::-1])
        rows.append(np.hstack(pictures))
    width = max(row.shape[1] for row in rows)
    padded = [np.pad(row, ((0, 2), (0, width - row.shape[1]), (0, 0))) for row in rows]
    return np.vstack(padded)


def _outline_classes(picture: np.ndarray, classes: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """A copy of a picture (H, W, 3), tinted by class indices (H, W) and with their contours."""
    outlined = picture.copy()
    inside = classes != 0
    outlined[inside] = (3 * outlined[inside].astype(np.uint16) + colors[classes[inside]]) // 4
    edges = contours(classes)
    outlined[edges] = colors[classes[edges]]
    return outlined


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


def orthogonal_slices(volume: np.ndarray, at: Sequence[int], spacing: Sequence[float], fill: float = 0) -> np.ndarray:
    """The slices through the voxel `at` in one picture, (h, w[, C]): axial, to its right sagittal, below it coronal.

    The volume (D, H, W[, C]) is in RAS orientation, the spacing (z, y, x) in mm. The patient's right is on the left,
    anterior is up, superior is up in the coronal slice and on the right in the sagittal one. `fill` is the value of the
    corner between the slices.
    """
    z, y, x = at
    finest = min(spacing)
    depth, height, width = (
        max(1, round(length * mm / finest)) for length, mm in zip(volume.shape, spacing, strict=False)
    )
    picture = np.full((height + depth, width + depth, *volume.shape[3:]), fill, volume.dtype)
    picture[:height, :width] = resize_mask(volume[z], (height, width))[::-1, ::-1]
    picture[:height, width:] = resize_mask(volume[:, :, x].swapaxes(0, 1), (height, depth))[::-1]
    picture[height:, :width] = resize_mask(volume[:, y], (depth, width))[::-1, ::-1]
    return picture


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
    middle = (size - 1) / 2
    if len(shown_points):
        middle = shown_points.mean(axis=0)
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
        true_spots = None
        if truth is not None:
            true_spots = _points_on_plane(truth[:, [rows, columns]], factors, height)
        pictures.append(render_points(resized, spots, is_found, true_spots, is_true))
    tallest = max(len(picture) for picture in pictures)
    padded = []
    for picture in pictures:
        below = tallest - len(picture)
        padded.append(np.pad(picture, ((0, below), (0, 2), (0, 0))))
    return np.hstack(padded)


def _points_on_plane(points: np.ndarray, factors: np.ndarray, height: int) -> np.ndarray:
    """Positions (K, 2) of a plane that is resized by `factors` to so many rows, and turned upside down."""
    spots = (points + 0.5) * factors - 0.5
    spots[:, 0] = height - 1 - spots[:, 0]
    return spots
