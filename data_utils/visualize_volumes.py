"""Volumes as pictures: slices in three planes."""

from collections.abc import Sequence

import numpy as np

from data_utils.image_io.resize import resize_image, resize_mask
from data_utils.visualize import to_rgb, value_limits
from unet.config import IGNORE_INDEX

PAGE_SIDE, PAGE_SLICES = 320, 4  # pixels of a volume's longest side, and slices of each plane on its page


def contours(mask: np.ndarray) -> np.ndarray:
    """Pixels of class indices (H, W) that are not of class 0 and have a neighbour, of four, of another class."""
    padded = np.pad(mask, 1, mode="edge")
    neighbours = (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:])
    return (mask != 0) & np.any([neighbour != mask for neighbour in neighbours], axis=0)


def slices_of_interest(mask: np.ndarray, count: int) -> list[list[int]]:
    """Along each axis of class indices (D, H, W), `count` slices through the class with the most voxels but class 0.

    Through the whole volume where there is no such class. Ignored voxels (255) are none.
    """
    voxels = np.sum([np.bincount(plane.ravel(), minlength=256) for plane in mask], axis=0)[1:255]
    inside = mask == 1 + voxels.argmax() if voxels.any() else np.ones_like(mask, bool)
    chosen = []
    for axis in range(3):
        there = np.flatnonzero(inside.any(axis=tuple({0, 1, 2} - {axis})))
        places = np.linspace(there[0], there[-1], count + 2)[1:-1]
        chosen.append(np.rint(places).astype(int).tolist())
    return chosen


def volume_page(
    image: np.ndarray, mask: np.ndarray, colors: np.ndarray, spacing: Sequence[float], count: int = PAGE_SLICES
) -> np.ndarray:
    """Rows of axial, coronal and sagittal slices of a volume, its mask as a tint with contours, uint8 (H', W', 3).

    Image (D, H, W, C) and class indices (D, H, W) in RAS orientation, spacing (z, y, x) in mm. Superior and anterior
    are up, the patient's right is on the left, as radiologists have it.
    """
    chosen = slices_of_interest(mask, count)
    planes = [[np.take(image, index, axis) for index in of_axis] for axis, of_axis in enumerate(chosen)]
    limits = value_limits(np.concatenate([plane.ravel() for of_axis in planes for plane in of_axis]))
    scale = PAGE_SIDE / max(length * mm for length, mm in zip(mask.shape, spacing, strict=True))
    rows = []
    for axis, of_axis in enumerate(planes):
        sides = [max(1, round(mask.shape[other] * spacing[other] * scale)) for other in range(3) if other != axis]
        pictures = []
        for plane, index in zip(of_axis, chosen[axis], strict=True):
            picture = resize_image(to_rgb(plane, limits), (sides[0], sides[1])).copy()
            classes = resize_mask(np.take(mask, index, axis), (sides[0], sides[1]))
            inside, edges = classes != 0, contours(classes)
            picture[inside] = (3 * picture[inside].astype(np.uint16) + colors[classes[inside]]) // 4
            picture[edges] = colors[classes[edges]]
            pictures.append(picture[::-1, ::-1])
        rows.append(np.hstack(pictures))
    width = max(row.shape[1] for row in rows)
    return np.vstack([np.pad(row, ((0, 2), (0, width - row.shape[1]), (0, 0))) for row in rows])


def busiest_voxel(mask: np.ndarray) -> tuple[int, ...]:
    """Along each axis of class indices (D, H, W) the slice that shows most of the classes but the first."""
    shown = (mask > 0) & (mask != IGNORE_INDEX)
    sums = [shown.sum(axis=tuple({0, 1, 2} - {axis})) for axis in range(3)]
    return tuple(int(along.argmax()) if along.any() else len(along) // 2 for along in sums)


def orthogonal_slices(volume: np.ndarray, at: Sequence[int], spacing: Sequence[float], fill: float = 0) -> np.ndarray:
    """The slices through the voxel `at` in one picture, (h, w[, C]): axial, to its right sagittal, below it coronal.

    volume (D, H, W[, C]) in RAS orientation, spacing (z, y, x) in mm. The patient's right is on the left, anterior is
    up, superior is up in the coronal slice and on the right in the sagittal one. `fill` is the corner between them.
    """
    z, y, x = at
    depth, height, width = (max(1, round(n * mm / min(spacing))) for n, mm in zip(volume.shape, spacing, strict=False))
    picture = np.full((height + depth, width + depth, *volume.shape[3:]), fill, volume.dtype)
    picture[:height, :width] = resize_mask(volume[z], (height, width))[::-1, ::-1]
    picture[:height, width:] = resize_mask(volume[:, :, x].swapaxes(0, 1), (height, depth))[::-1]
    picture[height:, :width] = resize_mask(volume[:, y], (depth, width))[::-1, ::-1]
    return picture
