"""Where the frames of a DICOM file lie in space."""

from typing import Any, NamedTuple

import numpy as np

from data_utils.image_io.dicom.headers import numbers_of


class Plane(NamedTuple):
    """A frame of a file.

    Args:
        path: its file.
        frame: its number in the file, from 0.
        position: (3,) the center of its first pixel in mm, the world's axes pointing left, posterior, superior (LPS).
        axes: (2, 3) the steps to the next column and to the next row in mm.
        thickness: of the slice in mm; 0 if it is not said.
        scale: slope and intercept by which stored numbers become values.
        groups: the functional groups of a frame of several, its own before those of all; else the header.
    """

    path: str
    frame: int
    position: np.ndarray
    axes: np.ndarray
    thickness: float
    scale: tuple[float, float]
    groups: tuple[Any, ...]

    @property
    def normal(self) -> np.ndarray:
        """(3,) the unit vector along which slices are sorted."""
        normal = np.cross(*self.axes)
        return normal / np.linalg.norm(normal)


def planes_of(header: Any, path: str) -> list[Plane]:
    """The frames of a file, in their order. Raises ValueError if it does not say where they lie."""
    count = int(header.get("NumberOfFrames") or 1)
    if "PerFrameFunctionalGroupsSequence" not in header:
        if count > 1:
            raise ValueError(f"it has {count} frames and does not say where each lies")
        return [_plane(path, 0, (header,) * 4, (header,))]
    shared = header.get("SharedFunctionalGroupsSequence") or [{}]
    planes = []
    for number, own in enumerate(header.PerFrameFunctionalGroupsSequence):
        groups = (own, shared[0])
        macros = [
            group_of(groups, keyword)
            for keyword in (
                "PlanePositionSequence",
                "PlaneOrientationSequence",
                "PixelMeasuresSequence",
                "PixelValueTransformationSequence",
            )
        ]
        planes.append(_plane(path, number, macros, groups))
    if len(planes) != count:
        raise ValueError(f"it describes {len(planes)} frames, and says that it has {count}")
    return planes


def group_of(groups: tuple[Any, ...], keyword: str) -> Any:
    """What a frame's functional groups hold under a keyword; empty if they hold nothing."""
    for group in groups:
        items = group.get(keyword)
        if items:
            return items[0]
    return {}


def _plane(path: str, frame: int, macros: Any, groups: tuple[Any, ...]) -> Plane:
    """The plane whose position, orientation, spacing and scale stand in four parts of a header."""
    position, orientation, measures, transformation = macros
    row_side, column_side = numbers_of(measures, "PixelSpacing", 2)
    directions = np.reshape(numbers_of(orientation, "ImageOrientationPatient", 6), (2, 3))
    if not np.allclose(directions @ directions.T, np.eye(2), atol=1e-3):
        raise ValueError("its ImageOrientationPatient is not two directions at a right angle")
    scale = (1.0, 0.0)
    if "RescaleSlope" in transformation:
        slope, intercept = (numbers_of(transformation, f"Rescale{word}", 1)[0] for word in ("Slope", "Intercept"))
        scale = (slope, intercept)
    thickness = float(measures.get("SliceThickness") or 0)
    # the first direction is that of a row, along which columns follow one another
    axes = directions * [[column_side], [row_side]]
    return Plane(
        path,
        frame,
        np.array(numbers_of(position, "ImagePositionPatient", 3)),
        axes,
        thickness,
        scale,
        groups,
    )
