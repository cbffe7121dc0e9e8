"""Written segmentations and structures lie on their voxels, as highdicom, pydicom and SimpleITK read them.

Modules: data_utils/image_io/dicom/write.py, data_utils/image_io/dicom/labels.py.
"""

from pathlib import Path

import highdicom
import numpy as np
import pydicom
import pytest
import SimpleITK
from skimage.draw import polygon2mask
from support.dicom import (
    GRIDS,
    PATIENT,
    TO_LPS,
    bits_by_highdicom,
    for_every_grid,
    upright,
    write_multiframe,
    write_series,
)

from data_utils.image_io.dicom.labels import segment_names
from data_utils.image_io.dicom.write import Regions
from data_utils.image_io.formats import Segments, VolumeFile
from data_utils.image_io.volumes import read_label_volume, read_volume, write_regions
from runtime.errors import ImageError

SHAPE = (9, 8, 6)  # columns, rows, slices
NAMES = ("liver", "tumor")


def marked(seed: int = 0) -> np.ndarray:
    """Bits (column, row, slice): an area with a hole and a voxel in the hole, a corner, and random voxels."""
    bits = np.zeros(SHAPE, np.int32)
    bits[1:7, 1:7, 1:3] |= 1
    bits[2:6, 2:6, 1:3] &= ~1
    bits[3, 3, 1] |= 1
    bits[0, 0, 0] |= 1
    bits[np.random.default_rng(seed).random(SHAPE) > 0.7] |= 2
    return bits


def write(folder: Path, bits: np.ndarray, affine: np.ndarray, series: VolumeFile, *, are_bits: bool = True) -> dict:
    """Write what is marked; name -> file."""
    regions = Regions(NAMES, ((255, 0, 0), (0, 90, 255)), upright(bits, affine), are_bits)
    files = {"SEG": folder / "seg.dcm", "RTSTRUCT": folder / "rt.dcm"}
    for name, path in files.items():
        with path.open("wb") as file:
            write_regions(file, regions, series, as_contours=name == "RTSTRUCT")
    return files


def read_again(path: Path, series: VolumeFile, *, are_bits: bool = True) -> np.ndarray:
    values = tuple((name, number if are_bits else number + 1) for number, name in enumerate(NAMES))
    label = VolumeFile((str(path),), grid_of=series, segments=Segments(values, are_bits))
    return read_label_volume(label, "case")[0]


def series_of(paths) -> VolumeFile:
    return VolumeFile(tuple(map(str, paths)), is_series=True)


@for_every_grid
def test_written_labels_are_read_again_voxel_for_voxel(tmp_path, grid):
    affine = GRIDS[grid]
    bits = marked()
    series = series_of(write_series(tmp_path / "in", np.zeros(SHAPE, np.int16), affine))
    files = write(tmp_path, bits, affine, series)
    for path in files.values():
        np.testing.assert_array_equal(read_again(path, series), upright(bits, affine))
    np.testing.assert_array_equal(bits_by_highdicom(files["SEG"], affine, SHAPE), bits)
    check_by_simpleitk(files["SEG"], bits, affine)
    check_contours(files["RTSTRUCT"], bits, affine)


def check_by_simpleitk(path: Path, bits: np.ndarray, affine: np.ndarray) -> None:
    """The pixels are those of the frames, and pydicom says which slice each shows."""
    pixels = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path)))
    header = pydicom.dcmread(path)
    positions = (TO_LPS @ affine @ [[0] * SHAPE[2], [0] * SHAPE[2], range(SHAPE[2]), [1] * SHAPE[2]])[:3].T
    seen = np.zeros(SHAPE, int)
    for frame, group in zip(pixels, header.PerFrameFunctionalGroupsSequence, strict=True):
        place = np.array(group.PlanePositionSequence[0].ImagePositionPatient, float)
        z = int(np.abs(positions - place).sum(axis=1).argmin())
        number = group.SegmentIdentificationSequence[0].ReferencedSegmentNumber
        seen[:, :, z] |= (frame.T > 0).astype(int) << (number - 1)
    np.testing.assert_array_equal(seen, bits)


def check_contours(path: Path, bits: np.ndarray, affine: np.ndarray) -> None:
    """The odd number of contours around each center, of the contours in its own slice."""
    structures = pydicom.dcmread(path)
    seen = np.zeros(SHAPE, int)
    for bit, roi in enumerate(structures.ROIContourSequence):
        for contour in roi.ContourSequence:
            places = np.reshape(np.array(contour.ContourData, float), (-1, 3))
            corners = (np.linalg.inv(TO_LPS @ affine) @ np.c_[places, np.ones(len(places))].T)[:3].T
            z = round(corners[0, 2])
            assert np.abs(corners[:, 2] - z).max() < 1e-6
            seen[:, :, z] ^= polygon2mask(SHAPE[:2], corners[:, :2]).astype(int) << bit
    np.testing.assert_array_equal(seen, bits)


def test_a_segmentation_says_what_the_standard_demands(tmp_path):
    affine = GRIDS["LPS"]
    paths = write_series(tmp_path / "in", np.zeros(SHAPE, np.int16), affine)
    files = write(tmp_path, marked(), affine, series_of(paths))
    source = pydicom.dcmread(paths[0])
    for path in files.values():
        written = pydicom.dcmread(path)
        for keyword in ("StudyInstanceUID", "FrameOfReferenceUID", "PatientName", "PatientID", "StudyDate"):
            assert written.get(keyword) == source.get(keyword)
        assert written.SeriesInstanceUID != source.SeriesInstanceUID
        assert written.PatientName == PATIENT["PatientName"]
    segmentation = highdicom.seg.segread(files["SEG"])
    assert [segment.SegmentLabel for segment in segmentation.SegmentSequence] == list(NAMES)
    first = segmentation.get_segment_description(1)
    assert first.algorithm_type.value == "AUTOMATIC"
    assert first.algorithm_identification.name == "U-Net"
    color = highdicom.color.CIELabColor.from_dicom_value(first.RecommendedDisplayCIELabValue)
    assert np.allclose(color.to_rgb(), (255, 0, 0), atol=2)
    referenced = {str(uid) for _, _, uid in segmentation.get_source_image_uids()}
    assert referenced == {str(pydicom.dcmread(path).SOPInstanceUID) for path in paths}
    structures = pydicom.dcmread(files["RTSTRUCT"])
    assert [list(roi.ROIDisplayColor) for roi in structures.ROIContourSequence] == [[255, 0, 0], [0, 90, 255]]


def test_classes_that_do_not_overlap_are_one_label(tmp_path):
    affine = GRIDS["PIR"]
    series = series_of(write_series(tmp_path / "in", np.zeros(SHAPE, np.int16), affine))
    labels = marked().clip(0, 2).astype(np.uint8)
    files = write(tmp_path, labels, affine, series, are_bits=False)
    for path in files.values():
        np.testing.assert_array_equal(read_again(path, series, are_bits=False), upright(labels, affine))


def test_frames_of_a_multiframe_series_keep_their_slices(tmp_path):
    affine = GRIDS["LPS"]
    bits = marked(3)
    series = series_of([write_multiframe(tmp_path / "in.dcm", np.zeros(SHAPE, np.int16), affine, [4, 0, 2, 5, 1, 3])])
    for path in write(tmp_path, bits, affine, series).values():
        np.testing.assert_array_equal(read_again(path, series), upright(bits, affine))
    np.testing.assert_array_equal(bits_by_highdicom(tmp_path / "seg.dcm", affine, SHAPE), bits)


def test_an_empty_prediction_has_its_segments_and_no_voxel(tmp_path):
    affine = GRIDS["LPS"]
    series = series_of(write_series(tmp_path / "in", np.zeros(SHAPE, np.int16), affine))
    for path in write(tmp_path, np.zeros(SHAPE, np.int32), affine, series).values():
        assert not read_again(path, series).any()


def test_a_tilted_gantry_is_written_slice_by_slice(tmp_path):
    affine = GRIDS["RAS"].copy()
    affine[:3, 2] = (0, 0.8, 2.3)
    bits = marked()
    series = series_of(write_series(tmp_path / "in", np.zeros(SHAPE, np.int16), affine))
    files = write(tmp_path, bits, affine, series)
    for path in files.values():
        np.testing.assert_array_equal(read_again(path, series), upright(bits, affine))
    check_by_simpleitk(files["SEG"], bits, affine)


def test_a_series_that_a_label_cannot_name_is_one_line(tmp_path):
    paths = write_series(tmp_path / "in", np.zeros(SHAPE, np.int16), GRIDS["LPS"], FrameOfReferenceUID="")
    with pytest.raises(ImageError, match="has no FrameOfReferenceUID, which a DICOM label must name"):
        write(tmp_path, marked(), GRIDS["LPS"], series_of(paths))


def test_a_series_without_words_on_the_patient_gets_a_label(tmp_path):
    paths = write_series(tmp_path / "in", np.zeros(SHAPE, np.int16), GRIDS["LPS"])
    for path in paths:
        dataset = pydicom.dcmread(path)
        for keyword in PATIENT:
            delattr(dataset, keyword)
        dataset.save_as(path)
    series = series_of(paths)
    for path in write(tmp_path, marked(), GRIDS["LPS"], series).values():
        assert read_again(path, series).any()
    assert read_volume(series, "case")[1].size == SHAPE[::-1]


def test_odd_words_on_the_patient_do_not_stop_a_label(tmp_path):
    words = {"StudyDate": "2007.8.19", "PatientBirthDate": "unknown", "StudyTime": "abc", "PatientSex": "X"}
    words |= {"SpecificCharacterSet": "ISO_IR 100", "PatientName": "M\u00fcller^J\u00f6rg"}
    series = series_of(write_series(tmp_path / "in", np.zeros(SHAPE, np.int16), GRIDS["LPS"], **words))
    for path in write(tmp_path, marked(), GRIDS["LPS"], series).values():
        written = pydicom.dcmread(path)
        assert written.PatientName == "M\u00fcller^J\u00f6rg"
        assert not written.StudyDate
        assert read_again(path, series).any()


@pytest.mark.parametrize("name", ["Leber gro\u00df", "\u809d\u81d3"])
def test_names_of_any_alphabet_are_kept(tmp_path, name):
    series = series_of(write_series(tmp_path / "in", np.zeros(SHAPE, np.int16), GRIDS["LPS"]))
    for as_contours in (False, True):
        regions = Regions((name,), ((255, 0, 0),), np.ones(SHAPE[::-1], np.uint8), are_bits=False)
        with (tmp_path / "label.dcm").open("wb") as file:
            write_regions(file, regions, series, as_contours=as_contours)
        assert segment_names(str(tmp_path / "label.dcm")) == [name]


@pytest.mark.parametrize("name", ["a" * 65, "left\\right"])
def test_a_name_that_dicom_cannot_hold_is_one_line(tmp_path, name):
    series = series_of(write_series(tmp_path / "in", np.zeros(SHAPE, np.int16), GRIDS["LPS"]))
    regions = Regions((name,), ((255, 0, 0),), np.ones(SHAPE[::-1], np.uint8), are_bits=False)
    with (tmp_path / "label.dcm").open("wb") as file, pytest.raises(ImageError, match="cannot be named in DICOM"):
        write_regions(file, regions, series)
