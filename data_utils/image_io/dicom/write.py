"""Masks of a DICOM series, written as a segmentation (SEG) or as a structure set of radiotherapy (RTSTRUCT).

Both belong to the study and the patient of the series, as the standard demands.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from data_utils.image_io.dicom.headers import load_pydicom, read_header
from data_utils.image_io.dicom.labels import STRUCTURES
from data_utils.image_io.dicom.series import DicomSeries
from data_utils.image_io.formats import image_errors
from runtime import VERSION
from runtime.errors import ImageError

ALGORITHM = "U-Net"
PRODUCT = "unet-accelerate"
SERIES_NUMBER = 9000  # beyond those of scanners
# what a patient and a study are known by: written as it stands in the series, empty where that has none
PATIENT = ("PatientName", "PatientID", "PatientBirthDate", "PatientSex")
STUDY = ("StudyInstanceUID", "StudyDate", "StudyTime", "StudyID", "AccessionNumber", "ReferringPhysicianName")
REQUIRED = ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID", "SOPInstanceUID", "SOPClassUID")
LONGEST_NAME = 64  # characters of the name of a segment or structure
CHARACTERS = "ISO_IR 192"  # DICOM's word for UTF-8
DIGITS = 10  # of a number in text, which has 16 characters at most


class Regions(NamedTuple):
    """The segments or structures of a series.

    Args:
        names, colors: of each; a color is red, green and blue, 0 to 255.
        labels: (slices, rows, columns), or (D, H, W) where they lie upright, the number of each voxel's region from 1,
            or a bit for each region.
        are_bits: whether regions may overlap.
    """

    names: Sequence[str]
    colors: Sequence[tuple[int, int, int]]
    labels: np.ndarray
    are_bits: bool

    def mask(self, index: int) -> np.ndarray:
        """Where a region is, bool."""
        if self.are_bits:
            return self.labels >> index & 1 == 1
        return self.labels == index + 1


def write_segmentation(file: BinaryIO, regions: Regions, series: DicomSeries) -> None:
    """Write a binary segment for each region, even if it is empty."""
    load_pydicom()
    import highdicom
    from pydicom.sr.codedict import codes

    algorithm = highdicom.AlgorithmIdentificationSequence(
        name=ALGORITHM, family=codes.DCM.ArtificialIntelligence, version=VERSION, source=PRODUCT
    )
    descriptions = []
    for number, (name, color) in enumerate(zip(regions.names, regions.colors, strict=True), 1):
        descriptions.append(
            highdicom.seg.SegmentDescription(
                segment_number=number,
                segment_label=name,
                segmented_property_category=codes.SCT.Tissue,
                segmented_property_type=codes.SCT.Tissue,
                algorithm_type="AUTOMATIC",
                algorithm_identification=algorithm,
                display_color=highdicom.color.CIELabColor.from_rgb(*color),
            )
        )
    order = [plane for slices in series.slices_by_file().values() for _, plane in sorted(slices.items())]
    if regions.are_bits:
        masks = np.stack([regions.mask(index)[order] for index in range(len(regions.names))], axis=-1).astype(np.uint8)
    else:
        masks = regions.labels[order].astype(np.uint16)
    _check_names(regions.names)
    headers = _headers(series)
    with image_errors(f"{series.planes[0].path}: its header"):
        segmentation = _segmentation(headers, masks, descriptions)
    segmentation.save_as(file)


def _segmentation(headers: Sequence[Any], masks: np.ndarray, descriptions: Sequence[Any]) -> Any:
    """The segmentation of masks in the order of the frames of these files."""
    import highdicom

    segmentation = highdicom.seg.Segmentation(
        source_images=headers,
        pixel_array=masks,
        segmentation_type="BINARY",
        segment_descriptions=descriptions,
        series_instance_uid=highdicom.UID(),
        series_number=SERIES_NUMBER,
        sop_instance_uid=highdicom.UID(),
        instance_number=1,
        manufacturer=PRODUCT,
        manufacturer_model_name=ALGORITHM,
        software_versions=VERSION,
        device_serial_number="0",
        content_label="SEGMENTATION",
        series_description=f"Segmentation by {PRODUCT}",
    )
    segmentation.SpecificCharacterSet = CHARACTERS
    return segmentation


def _check_names(names: Sequence[str]) -> None:
    """Raises ImageError for a name that DICOM cannot hold."""
    for name in names:
        if not 0 < len(name) <= LONGEST_NAME or "\\" in name:
            raise ImageError(
                f"the class {name!r} cannot be named in DICOM: 1 to {LONGEST_NAME} characters, no backslash"
            )


def _headers(series: DicomSeries) -> list[Any]:
    """The headers of the files of a series, with all words on patient and study that a label needs.

    Words that are missing, or that are no date, time or sex, become empty, as the standard allows. Raises ImageError
    for a series that a label cannot refer to.
    """
    from highdicom.enum import PatientSexValues

    valuerep = load_pydicom().valuerep
    kinds = {"StudyDate": valuerep.DA, "StudyTime": valuerep.TM, "PatientBirthDate": valuerep.DA}
    kinds["PatientSex"] = PatientSexValues
    headers = [read_header(path) for path in series.slices_by_file()]
    for header in headers:
        for keyword in (*PATIENT, *STUDY):
            value = header.get(keyword)
            try:
                if value:
                    kinds.get(keyword, str)(value)
            except ValueError:
                value = None
            setattr(header, keyword, value or "")
    missing = [keyword for keyword in REQUIRED if not headers[0].get(keyword)]
    if missing:
        path = series.planes[0].path
        raise ImageError(f"{path}: has no {missing[0]}, which a DICOM label must name; give --also nifti")
    return headers


def write_structures(file: BinaryIO, regions: Regions, series: DicomSeries) -> None:
    """Write the outlines of the regions in each slice; a hole is a contour of its own inside another."""
    pydicom = load_pydicom()
    _check_names(regions.names)
    headers = _headers(series)
    first = headers[0]
    now = datetime.now()
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dataset.SpecificCharacterSet = CHARACTERS
    dataset.SOPClassUID = STRUCTURES
    dataset.SOPInstanceUID = pydicom.uid.generate_uid()
    for keyword in (*PATIENT, *STUDY):
        setattr(dataset, keyword, first.get(keyword))
    dataset.Modality = "RTSTRUCT"
    dataset.SeriesInstanceUID = pydicom.uid.generate_uid()
    dataset.SeriesNumber = SERIES_NUMBER
    dataset.SeriesDescription = f"Structures by {PRODUCT}"
    dataset.OperatorsName = ""
    dataset.Manufacturer = PRODUCT
    dataset.ManufacturerModelName = ALGORITHM
    dataset.SoftwareVersions = VERSION
    dataset.FrameOfReferenceUID = first.FrameOfReferenceUID
    dataset.StructureSetLabel = "SEGMENTATION"
    dataset.StructureSetDate = dataset.InstanceCreationDate = now.strftime("%Y%m%d")
    dataset.StructureSetTime = dataset.InstanceCreationTime = now.strftime("%H%M%S")
    dataset.ReferencedFrameOfReferenceSequence = [_frame_of_reference(series, headers)]
    dataset.StructureSetROISequence = []
    dataset.ROIContourSequence = []
    dataset.RTROIObservationsSequence = []
    references = {path: _reference(header) for path, header in zip(series.slices_by_file(), headers, strict=True)}
    for number, (name, color) in enumerate(zip(regions.names, regions.colors, strict=True), 1):
        roi = _item(ROINumber=number, ROIName=name, ROIGenerationAlgorithm="AUTOMATIC")
        roi.ReferencedFrameOfReferenceUID = first.FrameOfReferenceUID
        dataset.StructureSetROISequence.append(roi)
        contours = _item(ReferencedROINumber=number, ROIDisplayColor=list(color), ContourSequence=[])
        for z, corners in _outlines(regions.mask(number - 1)):
            contours.ContourSequence.append(_contour(series, z, corners, references[series.planes[z].path]))
        dataset.ROIContourSequence.append(contours)
        observation = _item(ObservationNumber=number, ReferencedROINumber=number)
        observation.RTROIInterpretedType = observation.ROIInterpreter = ""
        dataset.RTROIObservationsSequence.append(observation)
    pydicom.dcmwrite(file, dataset, enforce_file_format=True)


def _item(**elements: Any) -> Any:
    item = load_pydicom().Dataset()
    for keyword, value in elements.items():
        setattr(item, keyword, value)
    return item


def _reference(header: Any) -> Any:
    return _item(ReferencedSOPClassUID=header.SOPClassUID, ReferencedSOPInstanceUID=header.SOPInstanceUID)


def _frame_of_reference(series: DicomSeries, headers: Sequence[Any]) -> Any:
    """The study, the series and the files that structures are drawn on."""
    first = headers[0]
    images = [_reference(header) for header in headers]
    drawn_on = _item(SeriesInstanceUID=first.SeriesInstanceUID, ContourImageSequence=images)
    study = _item(ReferencedSOPClassUID="1.2.840.10008.3.1.2.3.1", ReferencedSOPInstanceUID=first.StudyInstanceUID)
    study.RTReferencedSeriesSequence = [drawn_on]
    return _item(FrameOfReferenceUID=first.FrameOfReferenceUID, RTReferencedStudySequence=[study])


def _outlines(mask: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The slice and the corners (n, 2), as (row, column), of each outline of a mask.

    Corners lie half way between voxels of the mask and others, so that each center is clearly inside or outside.
    """
    from skimage.measure import find_contours

    for z in np.flatnonzero(mask.any(axis=(1, 2))).tolist():
        for corners in find_contours(np.pad(mask[z], 1).astype(np.uint8), 0.5):
            # the last corner is the first again; the padding begins at -1
            yield z, corners[:-1] - 1


def _contour(series: DicomSeries, z: int, corners: np.ndarray, reference: Any) -> Any:
    """An outline in a slice, in mm."""
    plane = series.planes[z]
    places = plane.position + corners[:, ::-1] @ plane.axes
    if len(series.slices_by_file()) == 1:  # frames are counted from 1
        reference = _item(
            ReferencedSOPClassUID=reference.ReferencedSOPClassUID,
            ReferencedSOPInstanceUID=reference.ReferencedSOPInstanceUID,
            ReferencedFrameNumber=plane.frame + 1,
        )
    return _item(
        ContourImageSequence=[reference],
        ContourGeometricType="CLOSED_PLANAR",
        NumberOfContourPoints=len(corners),
        ContourData=[f"{number:.{DIGITS}g}" for number in places.ravel().tolist()],
    )
