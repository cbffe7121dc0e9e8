"""Positions in an image or volume: converted from a file of points to pixels of the image as it is read, and back.

Files of images use pixels, from the top or from the bottom. Files of volumes use voxels along the axes of the volume's
own file, or mm in one of the two systems of medical images: RAS, the axes of which run to the right, to the front and
up, or LPS, whose first two run the other way.
"""

import numpy as np

from data_utils.image_io.formats import PointSource
from data_utils.image_io.resize import same_proportions
from data_utils.image_io.volumes import VolumeHeader
from runtime.errors import DataError

PIXELS = "pixels"
PIXELS_UPWARD = "pixels from the bottom"  # the center of the lowest row is 0, and y runs up
SIGNS = {"RAS": (1, 1, 1, 1), "LPS": (-1, -1, 1, 1)}  # factors on (x, y, z, 1) that lead to RAS


def to_pixels(source: PointSource, size: tuple[int, int], name: str) -> np.ndarray:
    """(K, 2) positions (y, x) in pixels of an image of `size` (H, W), from the (x, y) of a file.

    Raises DataError, with the `name` of the image, if they were made for an image of other proportions.
    """
    positions = source.positions.copy()
    if source.size is not None and source.size != size:
        if not same_proportions(source.size, size):
            height, width = source.size
            raise DataError(
                f"{name}: is {size[0]} x {size[1]} (height x width), but {source.file} gives points of an image of"
                f" {height} x {width}; correct the size in that file"
            )
        positions = (positions + 0.5) * (np.array(size[::-1]) / source.size[::-1]) - 0.5
    return from_pixels(positions[:, ::-1], source.space, size)[:, ::-1]


def from_pixels(pixels: np.ndarray, space: str, size: tuple[int, int]) -> np.ndarray:
    """The inverse of `to_pixels`, for an image of the size that the points are made for."""
    positions = pixels[:, ::-1].copy()
    if space == PIXELS_UPWARD:
        positions[:, 1] = size[0] - 1 - positions[:, 1]
    return positions


def to_voxels(positions: np.ndarray, space: str, header: VolumeHeader) -> np.ndarray:
    """(K, 3) positions (z, y, x) in voxels of a volume as it is read, from (x, y, z) in `space`."""
    inverse = np.linalg.inv(_affine(space, header))
    return (positions @ inverse[:3, :3].T + inverse[:3, 3])[:, ::-1]


def from_voxels(voxels: np.ndarray, space: str, header: VolumeHeader) -> np.ndarray:
    """The inverse of `to_voxels`."""
    affine = _affine(space, header)
    return voxels[:, ::-1] @ affine[:3, :3].T + affine[:3, 3]


def _affine(space: str, header: VolumeHeader) -> np.ndarray:
    """(4, 4), from (x, y, z) in voxels of a volume as it is read to (x, y, z) in `space`."""
    if space == PIXELS:
        affine = np.zeros((4, 4))
        affine[3, 3] = 1
        for stored_axis, (axis, step) in enumerate(header.stored_axes):
            affine[stored_axis, axis] = step
            if step < 0:
                affine[stored_axis, 3] = header.size[2 - axis] - 1
        return affine
    if space not in SIGNS:
        raise DataError(f"coordinate system {space!r} is none of {', '.join(SIGNS)}")
    return header.affine * np.array(SIGNS[space])[:, None]
