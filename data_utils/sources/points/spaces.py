"""Places in a volume: from what a file of points says to voxels as the volume is read, and back.

Files say voxels along the axes of the volume's own file, or mm in one of the two systems of medical images: RAS, the
axes of which run to the right, to the front and up, or LPS, whose first two run the other way.
"""

import numpy as np

from data_utils.image_io.volumes import VolumeHeader
from runtime.errors import DataError

PIXELS = "pixels"
SIGNS = {"RAS": (1.0, 1.0, 1.0), "LPS": (-1.0, -1.0, 1.0)}  # of (x, y, z), to RAS


def to_voxels(positions: np.ndarray, space: str, header: VolumeHeader) -> np.ndarray:
    """(K, 3) places (z, y, x) in voxels of a volume as it is read, from (x, y, z) in `space`."""
    if space == PIXELS:
        voxels = np.empty_like(positions)
        for stored_axis, (axis, step) in enumerate(header.stored_axes):
            last = header.size[2 - axis] - 1
            voxels[:, axis] = positions[:, stored_axis] if step == 1 else last - positions[:, stored_axis]
        return voxels[:, ::-1]
    places = positions * _signs(space)
    inverse = np.linalg.inv(header.affine)
    return (places @ inverse[:3, :3].T + inverse[:3, 3])[:, ::-1]


def from_voxels(voxels: np.ndarray, space: str, header: VolumeHeader) -> np.ndarray:
    """The inverse of `to_voxels`."""
    places = voxels[:, ::-1]
    if space == PIXELS:
        positions = np.empty_like(places)
        for stored_axis, (axis, step) in enumerate(header.stored_axes):
            last = header.size[2 - axis] - 1
            positions[:, stored_axis] = places[:, axis] if step == 1 else last - places[:, axis]
        return positions
    return (places @ header.affine[:3, :3].T + header.affine[:3, 3]) * _signs(space)


def _signs(space: str) -> np.ndarray:
    if space not in SIGNS:
        raise DataError(f"coordinate system {space!r} is none of {', '.join(SIGNS)}")
    return np.array(SIGNS[space])
