"""DICOM series, segmentations and structure sets of a made-up patient, on any grid."""

from collections.abc import Sequence
from itertools import permutations, product
from pathlib import Path

import highdicom
import nibabel
import numpy as np
import pytest
from highdicom.seg import Segmentation, SegmentDescription
from pydicom import dcmread
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.sequence import Sequence as Items
from pydicom.sr.codedict import codes
from pydicom.uid import (
    CTImageStorage,
    EnhancedCTImageStorage,
    ExplicitVRLittleEndian,
    RTStructureSetStorage,
    SecondaryCaptureImageStorage,
    generate_uid,
)

from support.volumes import AFFINES

PATIENT = {"PatientName": "Zyxwinski^Quentin", "PatientID": "PAT-90417", "PatientBirthDate": "19310722"}
PATIENT |= {"StudyDate": "20070819", "StudyTime": "031415", "AccessionNumber": "ACC-77231", "PatientSex": "O"}
PATIENT |= {"StudyID": "STUDY-5512", "ReferringPhysicianName": "Vwxyz^Ada", "InstitutionName": "Mercy of Qaanaaq"}
SECRETS = [text for text in "^".join(PATIENT.values()).split("^") if len(text) > 2]  # what no output may say
TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


def grids() -> dict[str, np.ndarray]:
    """The 48 orientations of axes and signs, at three different spacings, and oblique ones."""
    found = {name: AFFINES[name] for name in ("oblique", "turned")}
    for axes, signs in product(permutations(range(3)), product((1, -1), repeat=3)):
        affine = np.eye(4)
        affine[:3, :3] = np.diag([1.0, 1.5, 2.5])[list(axes)] * signs
        affine[:3, 3] = (-20.5, 13, 7)
        found["".join("RAS"[axis] if sign > 0 else "LPI"[axis] for axis, sign in zip(axes, signs, strict=True))] = (
            affine
        )
    return found


GRIDS = grids()
QUICK_GRIDS = ("oblique", "turned", "LPS", "PIR", "SAL")
OTHER_GRIDS = [pytest.param(name, marks=pytest.mark.slow) for name in GRIDS if name not in QUICK_GRIDS]
for_every_grid = pytest.mark.parametrize("grid", [*QUICK_GRIDS, *OTHER_GRIDS])


def upright(voxels: np.ndarray, affine: np.ndarray) -> np.ndarray:
    """(column, row, slice) -> (D, H, W) in RAS orientation."""
    image = nibabel.as_closest_canonical(nibabel.Nifti1Image(voxels.astype(np.int32), affine))
    return np.asarray(image.dataobj).transpose(2, 1, 0)


def bits_by_highdicom(path: Path, affine: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """(column, row, slice) of a series on a grid, a bit for each segment where highdicom lays it.

    The slices of the series are stacked along their normal.
    """
    volume = highdicom.seg.segread(path).get_volume(combine_segments=False)
    assert volume is not None
    found = np.argwhere(volume.array)
    places = volume.affine @ np.concatenate([found[:, :3].T, np.ones((1, len(found)))])
    voxels = np.linalg.inv(TO_LPS @ affine) @ places
    assert np.abs(voxels - voxels.round()).max() < 1e-3
    x, y, z, _ = voxels.round().astype(int)
    bits = np.zeros(shape, int)
    np.add.at(bits, (x, y, z), 1 << found[:, 3])
    return bits


def _file(path: Path, sop_class: str, **fields: object) -> FileDataset:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = sop_class
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SOPInstanceUID = sop_class, meta.MediaStorageSOPInstanceUID
    for keyword, value in {**PATIENT, **fields}.items():
        setattr(dataset, keyword, value)
    return dataset


def _items(**fields: object) -> Items:
    item = Dataset()
    for keyword, value in fields.items():
        setattr(item, keyword, value)
    return Items([item])


def text(numbers: Sequence[float]) -> list[str]:
    """Numbers as DICOM writes them, of at most 16 characters."""
    return [f"{number:.10g}"[:16] for number in numbers]


def _pixels(dataset: Dataset, pixels: np.ndarray) -> None:
    """Pixels (H, W), (frames, H, W) or (H, W, 3), int16 or uint8."""
    is_color = pixels.ndim == 3 and pixels.shape[2] == 3
    dataset.SamplesPerPixel = 3 if is_color else 1
    dataset.PhotometricInterpretation = "RGB" if is_color else "MONOCHROME2"
    if is_color:
        dataset.PlanarConfiguration = 0
    dataset.Rows, dataset.Columns = pixels.shape[:2] if is_color else pixels.shape[-2:]
    dataset.BitsAllocated = dataset.BitsStored = 8 * pixels.itemsize
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.PixelData = pixels.tobytes()


def write_series(
    folder: Path, voxels: np.ndarray, affine: np.ndarray, names: Sequence[str] = (), **fields: object
) -> list[Path]:
    """The slices of voxels (column, row, slice) int16 on a grid, `affine` to mm in RAS; one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    lps = TO_LPS @ affine
    sides = np.linalg.norm(lps[:3, :3], axis=0)
    common = {"Modality": "CT", "StudyInstanceUID": generate_uid(), "SeriesInstanceUID": generate_uid()}
    common |= {"FrameOfReferenceUID": generate_uid(), "SeriesNumber": 4, "RescaleSlope": "2", "RescaleIntercept": "-7"}
    common |= {"SliceThickness": f"{sides[2]:.6g}"} | fields
    paths = []
    for k in range(voxels.shape[2]):
        path = folder / (names[k] if names else f"{voxels.shape[2] - k:03}.dcm")  # names run against positions
        dataset = _file(path, CTImageStorage, InstanceNumber=k + 1, **common)
        dataset.ImageOrientationPatient = text([*(lps[:3, 0] / sides[0]), *(lps[:3, 1] / sides[1])])
        dataset.ImagePositionPatient = text((lps @ [0, 0, k, 1])[:3])
        dataset.PixelSpacing = text([sides[1], sides[0]])
        _pixels(dataset, voxels[:, :, k].T)
        dataset.save_as(path)
        paths.append(path)
    return paths


def write_multiframe(path: Path, voxels: np.ndarray, affine: np.ndarray, order: Sequence[int]) -> Path:
    """An enhanced CT whose frames are the slices in this order."""
    lps = TO_LPS @ affine
    sides = np.linalg.norm(lps[:3, :3], axis=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    uids = {"StudyInstanceUID": generate_uid(), "SeriesInstanceUID": generate_uid(), "SeriesNumber": 4}
    dataset = _file(path, EnhancedCTImageStorage, Modality="CT", FrameOfReferenceUID=generate_uid(), **uids)
    shared = Dataset()
    shared.PlaneOrientationSequence = _items(
        ImageOrientationPatient=text([*(lps[:3, 0] / sides[0]), *(lps[:3, 1] / sides[1])])
    )
    shared.PixelMeasuresSequence = _items(PixelSpacing=text([sides[1], sides[0]]), SliceThickness=f"{sides[2]:.6g}")
    shared.PixelValueTransformationSequence = _items(RescaleSlope="2", RescaleIntercept="-7", RescaleType="HU")
    dataset.SharedFunctionalGroupsSequence = Items([shared])
    frames = []
    for k in order:
        frame = Dataset()
        frame.PlanePositionSequence = _items(ImagePositionPatient=text((lps @ [0, 0, k, 1])[:3]))
        frames.append(frame)
    dataset.PerFrameFunctionalGroupsSequence = Items(frames)
    dataset.NumberOfFrames = len(frames)
    _pixels(dataset, np.stack([voxels[:, :, k].T for k in order]))
    dataset.save_as(path)
    return path


def write_picture(path: Path, pixels: np.ndarray, **fields: object) -> Path:
    """A single frame (H, W) or (H, W, 3) that lies nowhere in space."""
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset = _file(path, SecondaryCaptureImageStorage, Modality="OT", SeriesInstanceUID=generate_uid())
    _pixels(dataset, pixels)
    for keyword, value in fields.items():
        setattr(dataset, keyword, value)
    dataset.save_as(path)
    return path


def write_structures(
    path: Path, source: Path, affine: np.ndarray, contours: Sequence[tuple[str, float, Sequence]], **fields: object
) -> Path:
    """Closed contours of a series: a name, a slice, and corners (column, row) in voxels; several may have one name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = dcmread(source)
    dataset = _file(path, RTStructureSetStorage, Modality="RTSTRUCT", SeriesInstanceUID=generate_uid())
    series = _items(SeriesInstanceUID=header.SeriesInstanceUID)
    study = _items(ReferencedSOPInstanceUID=header.StudyInstanceUID, RTReferencedSeriesSequence=series)
    dataset.ReferencedFrameOfReferenceSequence = _items(RTReferencedStudySequence=study)
    names = list(dict.fromkeys(name for name, _, _ in contours))
    dataset.StructureSetROISequence = Items()
    dataset.ROIContourSequence = Items()
    for number, name in enumerate(names, 1):
        dataset.StructureSetROISequence += _items(ROINumber=number, ROIName=name)
        outlines = Items()
        for own_name, z, corners in contours:
            if own_name == name:
                points = np.array([(*corner, z, 1) for corner in corners])
                places = (TO_LPS @ affine @ points.T)[:3].T
                outlines += _items(ContourGeometricType="CLOSED_PLANAR", ContourData=text(places.ravel().tolist()))
        dataset.ROIContourSequence += _items(ReferencedROINumber=number, ContourSequence=outlines)
    for keyword, value in fields.items():
        setattr(dataset, keyword, value)
    dataset.save_as(path)
    return path


def write_segments(path: Path, sources: Sequence[Path], masks: dict[str, np.ndarray]) -> Path:
    """The segmentation of a series by highdicom; masks are (column, row, slice) bool, slices in the order of files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptions = []
    for number, name in enumerate(masks, 1):
        tissue = {"segmented_property_category": codes.SCT.Tissue, "segmented_property_type": codes.SCT.Tissue}
        descriptions.append(SegmentDescription(number, name, **tissue, algorithm_type="MANUAL"))
    pixels = np.stack([mask.transpose(2, 1, 0) for mask in masks.values()], axis=-1).astype(np.uint8)
    headers = [dcmread(source) for source in sources]
    uids = (generate_uid(), 7, generate_uid(), 1)
    Segmentation(headers, pixels, "BINARY", descriptions, *uids, "maker", "model", "1", "0").save_as(path)
    return path
