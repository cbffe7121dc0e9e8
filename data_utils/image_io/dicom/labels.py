"""Labels of a volume in DICOM: segmentations (SEG) and structure sets of radiotherapy (RTSTRUCT).

The formats: https://dicom.nema.org/medical/dicom/current/output/html/part03.html, A.51 and A.19.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from data_utils.class_names import is_background
from data_utils.image_io.dicom.headers import load_pydicom, read_header, required
from data_utils.image_io.dicom.series import TO_RAS, Plane, group_of, planes_of
from data_utils.image_io.formats import Segments, check_memory
from data_utils.image_io.stored_volume import StoredVolume
from runtime.documents import check_regular
from runtime.errors import DataError

SEGMENTATIONS = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")  # classes of files
STRUCTURES = "1.2.840.10008.5.1.4.1.1.481.3"
TURNED = 1e-2  # how far the sides of the pixels of a label may differ from those of voxels
OFF_GRID = 0.3  # how far, in voxels, a label may lie from the voxels of its image: positions are rounded
DIGITS = 3  # of a voxel, to which corners of contours are rounded, so that centers of voxels may lie on them
INSIDE = 1  # scikit-image's number for a pixel inside a polygon; higher ones lie on its edge

Voxels = tuple[np.ndarray, np.ndarray, np.ndarray]  # the index of each along x, y and z of the image's file


class SegmentsOverlap(DataError):
    """Voxels of several segments, in a label that can have one for each voxel."""


class SegmentVolume(StoredVolume):
    """The segments of one or several files on the grid of their image, whose voxels they are stored on."""

    def __init__(self, paths: Sequence[str], segments: Segments, image: StoredVolume) -> None:
        self.paths = paths
        self.segments = segments
        self.shape = image.shape
        self.affine = image.affine
        self.channels = 1
        self.dtype = np.dtype("int64" if segments.are_bits else "uint16")

    def read(self) -> np.ndarray:
        check_memory(int(np.prod(self.shape)) * self.dtype.itemsize, "the label")
        values = np.full(self.shape, self.segments.outside, self.dtype)
        names = dict(self.segments.values)
        for path in self.paths:
            for name, voxels in read_segments(path, self, names):
                if self.segments.are_bits:
                    values[voxels] |= 1 << names[name]
                    continue
                self._check_free(values[voxels], name)
                values[voxels] = names[name]
        return values[..., None]

    def _check_free(self, values: np.ndarray, name: str) -> None:
        """Raises SegmentsOverlap if some of the voxels of a segment have been given to another."""
        names = {value: other for other, value in self.segments.values if other != name}
        taken = values[(values != self.segments.outside) & np.isin(values, list(names))]
        if len(taken):
            raise SegmentsOverlap(
                f"{', '.join(self.paths)}: {name} and {names[int(taken[0])]} share {len(taken)} voxels or more; leave"
                " --task out, so that classes may overlap, or choose some with --classes"
            )


def segment_names(path: str) -> list[str]:
    """The names of the segments or structures that a label marks. May raise any error."""
    header = read_header(path)
    if header.get("SOPClassUID") == STRUCTURES:
        marked = {number for number, _ in _contours(header)}
        names = [name for number, name in _roi_names(header).items() if number in marked]
    else:
        names = list(_segment_labels(header).values())
    return [name for name in dict.fromkeys(names) if not is_background(name)]


def referenced_series(header: Any) -> list[str]:
    """The series that a label says it belongs to."""
    items: list[Any] = list(header.get("ReferencedSeriesSequence") or ())
    for frame in header.get("ReferencedFrameOfReferenceSequence") or ():
        for study in frame.get("RTReferencedStudySequence") or ():
            items += study.get("RTReferencedSeriesSequence") or ()
    return [str(item.SeriesInstanceUID) for item in items if "SeriesInstanceUID" in item]


def read_segments(path: str, image: StoredVolume, wanted: Container[str]) -> Iterator[tuple[str, Voxels]]:
    """Name and voxels of each piece of a label with one of the `wanted` names; many may have one name.

    Raises ValueError for voxels that lie beside those of the image.
    """
    check_regular(path)
    dataset = load_pydicom().dcmread(path)
    kind = required(dataset, "SOPClassUID")
    if kind == STRUCTURES:
        return _read_structures(dataset, image, wanted)
    if kind in SEGMENTATIONS:
        return _read_segmentation(dataset, path, image, wanted)
    raise ValueError("it is neither a segmentation (SEG) nor a structure set (RTSTRUCT)")


def _read_segmentation(
    dataset: Any, path: str, image: StoredVolume, wanted: Container[str]
) -> Iterator[tuple[str, Voxels]]:
    names = _segment_labels(dataset)
    kind = str(required(dataset, "SegmentationType"))
    if kind not in ("BINARY", "LABELMAP"):
        raise ValueError(f"its segments are {kind}, which are no masks; store them as BINARY")
    for plane, pixels in zip(planes_of(dataset, path), _frames(dataset), strict=True):
        if kind == "LABELMAP":
            for number in np.unique(pixels[pixels > 0]).tolist():
                if _name(names, number) in wanted:
                    yield names[number], _voxels_of_frame(plane, pixels == number, image)
        else:
            identification = group_of(plane.groups, "SegmentIdentificationSequence")
            number = int(required(identification, "ReferencedSegmentNumber"))
            if _name(names, number) in wanted:
                yield names[number], _voxels_of_frame(plane, pixels > 0, image)


def _segment_labels(header: Any) -> dict[int, str]:
    """Number -> name of each segment."""
    labels = {}
    for segment in required(header, "SegmentSequence"):
        labels[int(required(segment, "SegmentNumber"))] = str(required(segment, "SegmentLabel")).strip()
    return labels


def _name(names: dict[int, str], number: int) -> str:
    if number not in names:
        raise ValueError(f"it marks the segment {number}, which it does not name")
    return names[number]


def _frames(dataset: Any) -> Iterable[np.ndarray]:
    """The frames (H, W) of a segmentation; those of single bits follow one another without a gap."""
    if int(required(dataset, "BitsAllocated")) > 1:
        return load_pydicom().pixels.iter_pixels(dataset, raw=True)
    if dataset.file_meta.TransferSyntaxUID.is_encapsulated:
        pixels = dataset.pixel_array
        return pixels if pixels.ndim == 3 else pixels[None]
    return _frames_of_bits(dataset)


def _frames_of_bits(dataset: Any) -> Iterator[np.ndarray]:
    size = int(required(dataset, "Rows")), int(required(dataset, "Columns"))
    content = np.frombuffer(required(dataset, "PixelData"), np.uint8)
    pixels = size[0] * size[1]
    count = int(dataset.get("NumberOfFrames") or 1)
    if 8 * len(content) < count * pixels:
        raise EOFError("the file ends before its frames do")
    for start in range(0, count * pixels, pixels):
        first_byte, skipped = divmod(start, 8)
        end_byte = (start + pixels + 7) // 8
        bits = np.unpackbits(content[first_byte:end_byte], bitorder="little")
        yield bits[skipped : skipped + pixels].reshape(size)


def _voxels_of_frame(plane: Plane, mask: np.ndarray, image: StoredVolume) -> Voxels:
    """The voxels of an image under the pixels of a frame that are marked; the frame may lie across its slices."""
    to_voxels = _to_voxels(image)
    start = to_voxels[:3] @ [*plane.position, 1]
    steps = to_voxels[:3, :3] @ plane.axes.T
    if not np.allclose(np.abs(steps).sum(axis=0), 1, atol=TURNED):
        raise ValueError("its pixels are larger, smaller or turned against the voxels of the image; resample it")
    rows, columns = np.nonzero(mask)
    return _checked(start[:, None] + steps @ [columns, rows], image)


def _to_voxels(image: StoredVolume) -> np.ndarray:
    """(4, 4), from mm in DICOM's world to voxels of the image's file."""
    return np.linalg.inv(image.affine) @ TO_RAS


def _checked(points: np.ndarray, image: StoredVolume) -> Voxels:
    """The voxels at points (3, n). Raises ValueError for points between voxels, and beyond the image."""
    x, y, z = np.rint(points).astype(np.int64)
    if points.size and np.abs(points - (x, y, z)).max() > OFF_GRID:
        raise ValueError("it lies between the voxels of the image; resample it to the image's grid")
    for voxels, side in zip((x, y, z), image.shape, strict=True):
        if points.size and (voxels.min() < 0 or voxels.max() >= side):
            raise ValueError("it marks voxels beyond those of the image; is it the label of another series?")
    return x, y, z


def _roi_names(header: Any) -> dict[int, str]:
    """Number -> name of each region of interest."""
    names = {}
    for roi in required(header, "StructureSetROISequence"):
        names[int(required(roi, "ROINumber"))] = str(required(roi, "ROIName")).strip()
    return names


def _contours(header: Any) -> Iterator[tuple[int, np.ndarray]]:
    """The number of a region and the corners (n, 3) in mm of each of its closed contours."""
    for roi in header.get("ROIContourSequence") or ():
        for contour in roi.get("ContourSequence") or ():
            if contour.get("ContourGeometricType") in ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR"):
                corners = np.array(required(contour, "ContourData"), np.float64)
                if len(corners) % 3 or not np.isfinite(corners).all():
                    raise ValueError("a contour is not a list of places")
                yield int(required(roi, "ReferencedROINumber")), corners.reshape(-1, 3)


def _read_structures(dataset: Any, image: StoredVolume, wanted: Container[str]) -> Iterator[tuple[str, Voxels]]:
    """Each region in each slice: what an odd number of its contours surround, and the voxels that they run through."""
    from skimage.measure import grid_points_in_poly

    names = _roi_names(dataset)
    to_voxels = _to_voxels(image)
    masks: dict[tuple[int, int], np.ndarray] = {}
    for number, places in _contours(dataset):
        if _name(names, number) not in wanted:
            continue
        corners = places @ to_voxels[:3, :3].T + to_voxels[:3, 3]
        z = round(float(corners[:, 2].mean()))
        if np.abs(corners[:, 2] - z).max() > OFF_GRID:
            raise ValueError(f"a contour of {names[number]} does not lie in a slice of the image")
        corners = corners[:, 1::-1].round(DIGITS)
        top, left = np.floor(corners.min(axis=0)).astype(int)
        bottom, right = np.ceil(corners.max(axis=0)).astype(int) + 1
        width, height, depth = image.shape
        if top < -1 or left < -1 or bottom > height + 1 or right > width + 1 or not 0 <= z < depth:
            raise ValueError(f"a contour of {names[number]} lies beyond the image; is it of another series?")
        found = grid_points_in_poly((bottom - top, right - left), corners - (top, left), binarize=False)
        # the image with a margin of one pixel
        part = (slice(top + 1, bottom + 1), slice(left + 1, right + 1))
        inside, edges = masks.setdefault((number, z), np.zeros((2, height + 2, width + 2), bool))
        inside[part] ^= found == INSIDE
        edges[part] |= found > INSIDE
    for (number, z), (inside, edges) in masks.items():
        rows, columns = np.nonzero((inside | edges)[1:-1, 1:-1])
        yield names[number], (columns, rows, np.full_like(rows, z))
