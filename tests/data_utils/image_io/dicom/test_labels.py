"""Segmentations and structure sets of other programs are read as they are meant; spoiled ones are one line.

The published files of dcmqi, with the masks that it makes of them, agree voxel for voxel; they are not kept here.
"""

import numpy as np
import pydicom
import pytest
from support.dicom import GRIDS, SECRETS, write_segments, write_series, write_structures

from data_utils.image_io.formats import Segments, VolumeFile
from data_utils.image_io.volumes import read_label_volume
from runtime.errors import DataError

SHAPE = (9, 8, 6)  # columns, rows, slices
RAS = GRIDS["RAS"]
SQUARE = [(1, 1), (6, 1), (6, 6), (1, 6)]
OUTER = [(0.5, 0.5), (6.5, 0.5), (6.5, 6.5), (0.5, 6.5)]
HOLE = [(2.5, 2.5), (4.5, 2.5), (4.5, 4.5), (2.5, 4.5)]


@pytest.fixture
def paths(tmp_path) -> list:
    return write_series(tmp_path / "in", np.zeros(SHAPE, np.int16), RAS)


def read(path, paths, names=("liver", "tumor"), **settings) -> np.ndarray:
    """The label as (column, row, slice), as the series is stored along RAS."""
    segments = Segments(tuple((name, number) for number, name in enumerate(names, 1)), **settings)
    series = VolumeFile(tuple(map(str, paths)), is_series=True)
    label = VolumeFile((str(path),), grid_of=series, segments=segments)
    return read_label_volume(label, "case")[0].transpose(2, 1, 0)


def filled(corner: tuple[int, int], end: tuple[int, int], z: int) -> np.ndarray:
    """A box of ones in a slice."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[corner[0] : end[0], corner[1] : end[1], z] = 1
    return mask


CONTOURS = {
    "one contour": ([OUTER], filled((1, 1), (7, 7), 2)),
    "through centers": ([SQUARE], filled((1, 1), (7, 7), 2)),
    "a hole": ([OUTER, HOLE], filled((1, 1), (7, 7), 2) - filled((3, 3), (5, 5), 2)),
    "an island in a hole": (
        [OUTER, [(1.5, 1.5), (5.5, 1.5), (5.5, 5.5), (1.5, 5.5)], HOLE],
        filled((1, 1), (7, 7), 2) - filled((2, 2), (6, 6), 2) + filled((3, 3), (5, 5), 2),
    ),
    # the programs that outline the centers of voxels outline a hole by those around it
    "a hole through centers": (
        [SQUARE, [(2, 2), (5, 2), (5, 5), (2, 5)]],
        filled((1, 1), (7, 7), 2) - filled((3, 3), (5, 5), 2),
    ),
    "a hole by a keyhole": (
        [
            [
                *OUTER[:2],
                (6.5, 3.5),
                (4.5, 3.5),
                (4.5, 2.5),
                (2.5, 2.5),
                (2.5, 4.5),
                (4.5, 4.5),
                (4.5, 3.5),
                (6.5, 3.5),
                *OUTER[2:],
            ]
        ],
        filled((1, 1), (7, 7), 2) - filled((3, 3), (5, 5), 2),
    ),
    "two pieces": (
        [HOLE, [(5.5, 5.5), (8.5, 5.5), (8.5, 7.5), (5.5, 7.5)]],
        filled((3, 3), (5, 5), 2) + filled((6, 6), (9, 8), 2),
    ),
    "a point": ([[(3, 3)]], filled((3, 3), (4, 4), 2)),
}


@pytest.mark.parametrize(("outlines", "expected"), CONTOURS.values(), ids=CONTOURS)
def test_contours_are_even_odd(tmp_path, paths, outlines, expected):
    file = write_structures(tmp_path / "rt.dcm", paths[0], RAS, [("liver", 2, outline) for outline in outlines])
    np.testing.assert_array_equal(read(file, paths), expected)


def test_structures_and_segments_that_are_not_asked_for_are_left_out(tmp_path, paths):
    contours = [("body", 2, OUTER), ("liver", 2, HOLE), ("couch", 2.5, OUTER), ("wire", 2, [(-40, 0), (4, 0), (4, 4)])]
    file = write_structures(tmp_path / "rt.dcm", paths[0], RAS, contours)
    np.testing.assert_array_equal(read(file, paths, outside=9), 9 - 8 * filled((3, 3), (5, 5), 2))


def test_segments_of_one_name_are_one_class(tmp_path, paths):
    masks = {"liver": filled((1, 1), (3, 3), 2) > 0, "tumor": filled((4, 4), (6, 6), 3) > 0}
    file = write_segments(tmp_path / "seg.dcm", paths, masks)
    edit(file, names=("liver", "liver"))
    np.testing.assert_array_equal(read(file, paths), filled((1, 1), (3, 3), 2) + filled((4, 4), (6, 6), 3))


def test_a_label_of_other_slices_first_lies_where_it_says(tmp_path, paths):
    masks = {"liver": np.random.default_rng(0).random(SHAPE) > 0.5}
    file = write_segments(tmp_path / "seg.dcm", paths, masks)
    np.testing.assert_array_equal(read(file, paths[::-1]), masks["liver"])


def test_segments_lie_across_the_slices_of_another_series(tmp_path, paths):
    """A segmentation of the same voxels in coronal frames."""
    mask = np.random.default_rng(0).random(SHAPE) > 0.5
    turned = write_series(tmp_path / "turned", np.zeros((9, 6, 8), np.int16), RAS[:, [0, 2, 1, 3]])
    file = write_segments(tmp_path / "seg.dcm", turned, {"liver": mask.transpose(0, 2, 1)})
    np.testing.assert_array_equal(read(file, paths), mask)


def edit(path, names=(), **fields) -> None:
    dataset = pydicom.dcmread(path)
    for segment, name in zip(dataset.get("SegmentSequence", ()), names, strict=False):
        segment.SegmentLabel = name
    for keyword, value in fields.items():
        setattr(dataset, keyword, value)
    dataset.save_as(path)


def coarser(path) -> None:
    dataset = pydicom.dcmread(path)
    dataset.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].PixelSpacing = [3, 2]
    dataset.save_as(path)


def moved(path, distance: float) -> None:
    dataset = pydicom.dcmread(path)
    for group in dataset.PerFrameFunctionalGroupsSequence:
        x, y, z = group.PlanePositionSequence[0].ImagePositionPatient
        group.PlanePositionSequence[0].ImagePositionPatient = [x, y, z + distance]
    dataset.save_as(path)


def cut(path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


SPOILED_SEGMENTS = {
    "fractions": (lambda path: edit(path, SegmentationType="FRACTIONAL"), "FRACTIONAL, which are no masks"),
    "coarser": (coarser, "larger, smaller or turned"),
    "between slices": (lambda path: moved(path, 1.2), "lies between the voxels"),
    "of another series": (lambda path: moved(path, 250), "marks voxels beyond those of the image"),
    "fewer bits": (lambda path: edit(path, PixelData=b"\0\0"), "ends before its frames do"),
    "more frames than it describes": (lambda path: edit(path, NumberOfFrames=9), "describes 1 frames"),
    "cut": (cut, "cannot be read"),
    "an image": (lambda path: edit(path, SOPClassUID="1.2.840.10008.5.1.4.1.1.2"), "neither a segmentation"),
}


@pytest.mark.parametrize(("spoil", "line"), SPOILED_SEGMENTS.values(), ids=SPOILED_SEGMENTS)
def test_a_spoiled_segmentation_is_one_line(tmp_path, paths, spoil, line):
    file = write_segments(tmp_path / "seg.dcm", paths, {"liver": filled((1, 1), (3, 3), 5) > 0})
    spoil(file)
    check_line(file, paths, line)


SPOILED_STRUCTURES = {
    "between slices": ([("liver", 2.5, SQUARE)], {}, "does not lie in a slice"),
    "beyond the slices": ([("liver", 40, SQUARE)], {}, "lies beyond the image"),
    "beside the image": ([("liver", 2, [(x + 50, y) for x, y in SQUARE])], {}, "lies beyond the image"),
    "without names": ([("liver", 2, SQUARE)], {"StructureSetROISequence": []}, "has no StructureSetROISequence"),
}


@pytest.mark.parametrize(("contours", "fields", "line"), SPOILED_STRUCTURES.values(), ids=SPOILED_STRUCTURES)
def test_spoiled_structures_are_one_line(tmp_path, paths, contours, fields, line):
    check_line(write_structures(tmp_path / "rt.dcm", paths[0], RAS, contours, **fields), paths, line)


def test_a_contour_of_half_a_place_is_one_line(tmp_path, paths):
    file = write_structures(tmp_path / "rt.dcm", paths[0], RAS, [("liver", 2, SQUARE)])
    dataset = pydicom.dcmread(file)
    dataset.ROIContourSequence[0].ContourSequence[0].ContourData = ["1", "2"]
    dataset.save_as(file)
    check_line(file, paths, "a contour is not a list of places")


def check_line(file, paths, line: str) -> None:
    with pytest.raises(DataError, match=line) as caught:
        read(file, paths)
    message = str(caught.value)
    assert "\n" not in message
    assert not any(secret in message for secret in SECRETS)


def test_classes_that_share_voxels_are_one_line_in_a_label_of_one_class_each(tmp_path, paths):
    contours = [("liver", 2, OUTER), ("tumor", 2, HOLE)]
    file = write_structures(tmp_path / "rt.dcm", paths[0], RAS, contours)
    with pytest.raises(DataError, match="tumor and liver share 4 voxels"):
        read(file, paths)
    overlapping = read(file, paths, are_bits=True)
    np.testing.assert_array_equal(overlapping >> 1 & 1, filled((1, 1), (7, 7), 2))
    np.testing.assert_array_equal(overlapping >> 2 & 1, filled((3, 3), (5, 5), 2))
