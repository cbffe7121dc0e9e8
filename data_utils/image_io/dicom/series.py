"""A DICOM series as a volume: slices sorted by where they lie, whatever their files are called."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from data_utils.image_io.dicom.headers import SUFFIXES, is_dicom, load_pydicom, read_header, required, starts_as_dicom
from data_utils.image_io.dicom.planes import Plane, planes_of
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
TYPES = ("uint8", "int16", "uint16", "int32")


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
        for frame, pixels in enumerate(_frames(path)):
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


def _frames(path: str) -> Iterator[np.ndarray]:
    """The frames (H, W) of a file as they are stored."""
    yield from load_pydicom().pixels.iter_pixels(path, raw=True)


class DicomImage(WindowedArray):
    """A DICOM file of one frame as an image, (H, W) or (H, W, 3) of red, green and blue."""

    suffixes = (".dcm",)

    @classmethod
    def takes(cls, file: str | Path | bytes) -> bool:
        if isinstance(file, bytes):
            return starts_as_dicom(file)
        return _may_be_dicom(file) and is_dicom(file)

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


def _may_be_dicom(path: str | Path) -> bool:
    """Whether a file is called like DICOM: it has such an extension, none, or the end of a number."""
    suffix = Path(path).suffix.lower()
    return suffix in SUFFIXES or not suffix[1:].isalpha()
