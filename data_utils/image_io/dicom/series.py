"""A DICOM series as a volume: slices sorted by where they lie, whatever their files are called."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_utils.image_io.dicom.headers import (
    SUFFIXES,
    is_dicom,
    load_pydicom,
    numbers_of,
    read_header,
    required,
    starts_as_dicom,
)
from data_utils.image_io.formats import PageFile, check_memory
from data_utils.image_io.stored_volume import StoredVolume
from data_utils.image_io.windowed import WindowedArray
from runtime.documents import check_regular
from runtime.errors import DataError, one_line
from runtime.parallel import map_indices

TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # from DICOM's world, left, posterior, superior
TILT = 1e-3  # how far directions of one series may differ
UNEVEN = 0.2  # how far a slice may lie from its place, as a share of the distance of slices: positions are rounded
ALIKE = ("Rows", "Columns", "SamplesPerPixel", "PatientID", "SeriesInstanceUID", "FrameOfReferenceUID")
GEOMETRY: tuple[str, ...] = (
    "ImagePositionPatient",
    "ImageOrientationPatient",
    "PixelSpacing",
    "SliceThickness",
    "NumberOfFrames",
)
GEOMETRY += ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")
PIXELS = ("BitsStored", "PixelRepresentation", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence")
PLANE_GROUPS = (  # of a frame of several
    *("PlanePositionSequence", "PlaneOrientationSequence"),
    *("PixelMeasuresSequence", "PixelValueTransformationSequence"),
)
TYPES = ("uint8", "int16", "uint16", "int32")


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
        planes.append(_plane(path, number, [group_of(groups, keyword) for keyword in PLANE_GROUPS], groups))
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


class DicomSeries(StoredVolume):
    """The files of a series: a slice each, or one with all frames.

    Attributes:
        planes: the slices, sorted along the normal of their plane.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        headers = list(map_indices(partial(_read, paths), len(paths)))
        for keyword in ALIKE:
            if len({str(header.get(keyword)) for header in headers}) > 1:
                raise ValueError(f"its files differ in {keyword}, and are no single series")
        first = headers[0]
        samples = int(required(first, "SamplesPerPixel"))
        if samples != 1:
            raise ValueError(f"it has {samples} values for each pixel; a volume of colors is not read")
        planes = []
        for header, path in zip(headers, paths, strict=True):
            with _naming(path):
                if "ModalityLUTSequence" in header:
                    raise ValueError(
                        "a table makes values of its stored numbers; only RescaleSlope and -Intercept are read"
                    )
                planes += planes_of(header, path)
        self.planes = sort_planes(planes)
        self.shape = (int(required(first, "Columns")), int(required(first, "Rows")), len(planes))
        self.channels = 1
        self.dtype = _type_of_values(headers, planes)
        self.affine = TO_RAS @ _affine(self.planes)

    def read(self) -> np.ndarray:
        shape = self.shape[::-1]
        check_memory(prod(shape) * self.dtype.itemsize, "the volume")
        voxels = np.empty(shape, self.dtype)
        for path, slices in self.slices_by_file().items():
            with _naming(path, hint="; is it cut off?"):
                self._read_file(path, slices, voxels)
        return voxels.transpose(2, 1, 0)[..., None]

    def _read_file(self, path: str, slices: dict[int, int], voxels: np.ndarray) -> None:
        """Fill the slices that a file holds, by the number of its frame."""
        # all frames at once: pydicom 3.0.2 cannot give compressed numbers their sign frame by frame
        pydicom = load_pydicom()
        stored = pydicom.pixels.pixel_array(pydicom.dcmread(path), raw=True)
        for frame, pixels in enumerate(stored.reshape(-1, *stored.shape[-2:])):
            if frame not in slices or pixels.shape != voxels.shape[1:]:
                raise ValueError("it holds other frames than its header says")
            index = slices.pop(frame)
            slope, intercept = self.planes[index].scale
            voxels[index] = pixels if (slope, intercept) == (1, 0) else pixels * slope + intercept
        if slices:
            raise EOFError("it ends before its frames do")

    def slices_by_file(self) -> dict[str, dict[int, int]]:
        """File -> number of each of its frames -> the slice that it is."""
        slices: dict[str, dict[int, int]] = {}
        for index, plane in enumerate(self.planes):
            slices.setdefault(plane.path, {})[plane.frame] = index
        return slices


def _read(paths: Sequence[str], index: int) -> Any:
    check_regular(paths[index])
    with _naming(paths[index]):
        return read_header(paths[index], (*ALIKE, *GEOMETRY, *PIXELS))


@contextmanager
def _naming(path: str, hint: str = "") -> Iterator[None]:
    """Within, an error says in which file of a series it was found; a damaged one makes pydicom raise anything."""
    try:
        yield
    except DataError:  # pydicom is missing
        raise
    except Exception as error:
        raise ValueError(f"{path}: {one_line(error)}{hint}") from error


def sort_planes(planes: Sequence[Plane]) -> list[Plane]:
    """The slices in the order in which they lie. Raises ValueError for gaps, doubles and other orientations.

    A tilted gantry is allowed: each slice keeps its place, along a line that is not the normal of the slices.
    """
    first = planes[0]
    for plane in planes:
        if not np.allclose(plane.axes, first.axes, atol=TILT * float(np.abs(first.axes).max())):
            raise ValueError("its slices differ in orientation or PixelSpacing; a volume has one")
    planes = sorted(planes, key=lambda plane: float(plane.position @ first.normal))
    if len(planes) == 1:
        return planes
    positions = np.array([plane.position for plane in planes])
    distances = np.diff(positions @ first.normal)
    usual = float(np.sort(distances)[(len(distances) - 1) // 2])
    closest = int(distances.argmin())
    if distances[closest] <= UNEVEN * usual:
        files = f"{_name(planes[closest])} and {_name(planes[closest + 1])}"
        raise ValueError(f"{files} lie at one place; a volume has one slice there: keep one series of slices")
    oddest = int(np.abs(distances - usual).argmax())
    if abs(distances[oddest] - usual) > UNEVEN * usual:
        files = f"{_name(planes[oddest])} and {_name(planes[oddest + 1])}"
        raise ValueError(f"{files} are {distances[oddest]:.6g} mm apart, others {usual:.6g}: slices are missing")
    line = np.linspace(positions[0], positions[-1], len(planes))
    if np.abs(positions - line).max() > UNEVEN * usual:
        raise ValueError("its slices do not lie on one line")
    return planes


def _name(plane: Plane) -> str:
    return plane.path if plane.frame == 0 else f"{plane.path} frame {plane.frame + 1}"


def _affine(planes: Sequence[Plane]) -> np.ndarray:
    """(4, 4), from (column, row, slice) to mm in LPS; a slice alone is as thick as it says, or 1 mm."""
    first = planes[0]
    step = first.normal * (first.thickness or 1)
    if len(planes) > 1:
        step = (planes[-1].position - first.position) / (len(planes) - 1)
    affine = np.eye(4)
    affine[:3] = np.stack([*first.axes, step, first.position], axis=1)
    return affine


def _type_of_values(headers: Sequence[Any], planes: Sequence[Plane]) -> np.dtype:
    """The smallest type for all values that the stored bits can mean; float32 where they become fractions."""
    ends: list[float] = []
    for bits, is_signed in {(int(required(header, "BitsStored")), _is_signed(header)) for header in headers}:
        lowest, highest = _stored_range(bits, is_signed)
        for slope, intercept in {plane.scale for plane in planes}:
            if not slope.is_integer() or not intercept.is_integer():
                return np.dtype("float32")
            ends += [lowest * slope + intercept, highest * slope + intercept]
    for name in TYPES:
        if np.iinfo(name).min <= min(ends) and max(ends) <= np.iinfo(name).max:
            return np.dtype(name)
    return np.dtype("float32")


def _is_signed(header: Any) -> bool:
    return bool(header.get("PixelRepresentation"))


def _stored_range(bits: int, is_signed: bool) -> tuple[int, int]:
    """The smallest and the largest number that so many bits can hold."""
    if is_signed:
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1


class DicomImage(WindowedArray):
    """A DICOM file of one frame as an image, (H, W) or (H, W, 3) of red, green and blue."""

    suffixes = (".dcm",)

    @classmethod
    def takes(cls, file: str | Path | bytes) -> bool:
        if isinstance(file, bytes):
            return starts_as_dicom(file)
        suffix = Path(file).suffix.lower()
        # such an extension, none, or the end of a number
        return (suffix in SUFFIXES or not suffix[1:].isalpha()) and is_dicom(file)

    @classmethod
    def open_file(cls, file: PageFile, name: str, stack: ExitStack) -> WindowedArray:
        source: Any = file.path
        if isinstance(source, bytes):
            source = BytesIO(source)
        header = load_pydicom().dcmread(source)
        frames = int(header.get("NumberOfFrames") or 1)
        if frames != 1:
            raise ValueError(f"it has {frames} frames; an image has one")
        check_memory(3 * int(required(header, "Rows")) * int(required(header, "Columns")) * 2, "the image")
        stored = header.pixel_array
        if header.get("PhotometricInterpretation") == "MONOCHROME1":  # the lowest number is white
            stored = sum(_stored_range(int(header.BitsStored), _is_signed(header))) - stored
        pixels = load_pydicom().pixels.apply_modality_lut(stored, header)
        if pixels.dtype.kind == "f":
            pixels = pixels.astype(np.float32)
        return cls(pixels)
