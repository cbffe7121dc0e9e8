"""Trees of DICOM: which series, which labels, which classes; what is left out is said."""

import shutil
from pathlib import Path

import numpy as np
import pydicom
import pytest
from support.dicom import (
    GRIDS,
    SECRETS,
    write_multiframe,
    write_picture,
    write_segments,
    write_series,
    write_structures,
)
from support.volumes import training_volumes, volume_config, write_nifti

from data_utils.config import OVERLAPPING
from data_utils.image_io.volumes import read_label_volume, read_volume
from data_utils.sources.load import find_in_folder, load_records
from runtime.errors import DataError

SHAPE = (9, 8, 6)
LPS = GRIDS["LPS"]
LIVER = np.zeros(SHAPE, bool)
LIVER[1:4, 1:4, 1:3] = True
TUMOR = np.zeros(SHAPE, bool)
TUMOR[5:8, 5:7, 3:5] = True
CORNERS = [(0.5, 0.5), (3.5, 0.5), (3.5, 3.5), (0.5, 3.5)]
# LIVER as contours
OUTLINES = [("liver", 1, CORNERS), ("liver", 2, CORNERS)]


def voxels(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 500, SHAPE).astype(np.int16)


def values_of(records) -> list[np.ndarray]:
    """The labels as (column, row, slice) of files along LPS."""
    return [read_label_volume(record["target"], "case")[0][:, ::-1, ::-1].transpose(2, 1, 0) for record in records]


@pytest.fixture
def tree(tmp_path) -> Path:
    """Two studies of one patient and one of another as TCIA has them; a scout, a picture, a report and a DICOMDIR."""
    root = tmp_path / "tree"
    names = [f"IM{number}" for number in (3, 1, 2, 6, 4, 5)]
    first = write_series(root / "A" / "study 1" / "ct", voxels(1), LPS, names)
    write_segments(root / "A" / "study 1" / "seg" / "1-1.dcm", first, {"liver": LIVER, "tumor": TUMOR})
    second = write_series(root / "A" / "study 2" / "all", voxels(2), LPS, names)
    write_series(root / "A" / "study 2" / "all", voxels(3), LPS, [f"scout {number}" for number in range(6)])
    write_structures(root / "A" / "study 2" / "rt" / "RS", second[0], LPS, OUTLINES)
    third = write_series(root / "B" / "ct", voxels(4), LPS, names)
    write_segments(root / "B" / "seg.dcm", third, {"tumor": TUMOR})
    write_picture(root / "B" / "picture", np.zeros((4, 5, 3), np.uint8))
    (root / "notes.txt").write_text("a note")
    shutil.copy(pydicom.data.get_testdata_file("DICOMDIR"), root / "DICOMDIR")
    return root


def test_labels_of_a_tree_belong_to_the_series_that_they_refer_to(tree):
    records = training_volumes(tree)
    assert [record["name"] for record in records] == ["A/study 1/ct", "A/study 2/all/series_1", "B/ct"]
    assert records.metadata.classes == ((0, "background"), (1, "liver"), (2, "tumor"))
    assert (records.dims, records.metadata.modality) == (3, "CT")
    expected = [LIVER + 2 * TUMOR, LIVER, 2 * TUMOR]
    for values, label in zip(values_of(records), expected, strict=True):
        np.testing.assert_array_equal(values, label)
    for record, seed in zip(records, (1, 2, 4), strict=True):
        image, _ = read_volume(record["image"], "case")
        np.testing.assert_array_equal(image[:, ::-1, ::-1, 0].transpose(2, 1, 0), 2 * voxels(seed) - 7)


def test_what_a_tree_leaves_out_is_said(tree):
    (tree / "B" / "ct" / "damaged").write_bytes((tree / "B" / "ct" / "IM1").read_bytes()[:200])
    (tree / "B" / "ct" / "older.dcm").write_bytes(b"no mark")
    lines = "\n".join(training_volumes(tree).metadata.left_out)
    assert f"{tree / 'B' / 'ct' / 'older.dcm'}: cannot be read (it lacks the mark DICM" in lines
    assert "1 file that is a DICOM image without a place in space, the first is B/picture" in lines
    assert "1 file that is neither image nor label of DICOM, the first is DICOMDIR" in lines
    assert "1 series without a label, the first is A/study 2/all/series_2" in lines
    assert f"{tree / 'B' / 'ct' / 'damaged'}: cannot be read (its header is cut off)" in lines
    assert not any(secret in lines for secret in SECRETS)


def test_splits_of_a_tree_share_their_classes(tree):
    shutil.copytree(tree / "A", tree / "train")
    shutil.move(tree / "B", tree / "val")
    shutil.rmtree(tree / "A")
    train, val = load_records(volume_config(tree))
    assert (len(train), len(val)) == (2, 1)
    np.testing.assert_array_equal(values_of(val)[0], 2 * TUMOR)


def write_cases(root: Path, *, nifti: bool = False) -> None:
    """images/CASE beside masks/CASE, of which one is a multi-frame file."""
    for number, name in enumerate(("one", "two")):
        paths = write_series(root / "images" / name / "deep", voxels(number), LPS, [f"{k}.ima" for k in range(6)])
        if nifti:
            write_nifti(root / "masks" / f"{name}.nii.gz", LIVER.astype(np.uint8), LPS)
        elif number:
            write_structures(root / "masks" / f"{name}.dcm", paths[0], LPS, OUTLINES)
        else:
            write_segments(root / "masks" / f"{name}.dcm", paths, {"liver": LIVER, "tumor": TUMOR})
    if nifti:
        write_multiframe(root / "images" / "three.dcm", voxels(3), LPS, [3, 1, 2, 0, 5, 4])
        write_nifti(root / "masks" / "three.nii.gz", LIVER.astype(np.uint8), LPS)


def test_cases_lie_beside_their_segmentations_and_structures(tmp_path):
    write_cases(tmp_path)
    records = training_volumes(tmp_path)
    assert [record["name"] for record in records] == ["one", "two"]
    for values, label in zip(values_of(records), [LIVER + 2 * TUMOR, LIVER], strict=True):
        np.testing.assert_array_equal(values, label)


def test_cases_lie_beside_labels_of_nifti(tmp_path):
    write_cases(tmp_path, nifti=True)
    records = training_volumes(tmp_path)
    assert [record["name"] for record in records] == ["one", "three", "two"]
    assert records.metadata.classes == ()
    for values in values_of(records):
        np.testing.assert_array_equal(values, LIVER)


def test_slices_of_series_are_images(tmp_path):
    write_cases(tmp_path)
    train, val = load_records(volume_config(tmp_path, dims=2))
    assert {len(train), len(val)} == {6}


@pytest.fixture
def overlapping(tmp_path) -> Path:
    """A tree in which the body holds the liver."""
    for number in range(2):
        paths = write_series(tmp_path / f"{number}" / "ct", voxels(number), LPS)
        body = [("body", z, [(-0.4, -0.4), (8.4, -0.4), (8.4, 7.4), (-0.4, 7.4)]) for z in range(6)]
        write_structures(tmp_path / f"{number}" / "rt.dcm", paths[0], LPS, [*body, *OUTLINES])
    return tmp_path


def test_segments_that_share_voxels_are_classes_that_overlap_unless_others_are_chosen(overlapping):
    records = training_volumes(overlapping)
    assert records.metadata.task == OVERLAPPING
    assert records.metadata.classes == ((1, "body"), (2, "liver"))
    for values in values_of(records):
        np.testing.assert_array_equal(values, 1 + 2 * LIVER)
    records = training_volumes(overlapping, classes="liver")
    assert records.metadata.task is None
    for values in values_of(records):
        np.testing.assert_array_equal(values, 2 * LIVER)
    record = training_volumes(overlapping, task="classes")[0]
    with pytest.raises(DataError, match="liver and body share"):
        read_label_volume(record["target"], "case")


def lose_series(root: Path) -> None:
    shutil.rmtree(root / "B" / "ct")


def lose_labels(root: Path) -> None:
    for label in (root / "A" / "study 1" / "seg", root / "A" / "study 2" / "rt"):
        shutil.rmtree(label)
    (root / "B" / "seg.dcm").unlink()


def label_twice(root: Path) -> None:
    shutil.copy(root / "B" / "seg.dcm", root / "B" / "other reader.dcm")


def spoil_label(root: Path) -> None:
    path = root / "B" / "seg.dcm"
    dataset = pydicom.dcmread(path)
    del dataset.SegmentSequence
    dataset.save_as(path)


PROBLEMS = {
    "no series": (lose_series, "seg.dcm: label without the series that it refers to"),
    "no label": (lose_labels, "holds 4 DICOM series and no label of them, SEG or RTSTRUCT"),
    "two labels": (label_twice, "both mark tumor in one series; keep one of them"),
    "a spoiled label": (spoil_label, "seg.dcm cannot be read .it has no SegmentSequence"),
}


@pytest.mark.parametrize(("spoil", "line"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_tree_that_cannot_be_used_is_one_line(tree, spoil, line):
    spoil(tree)
    with pytest.raises(DataError, match=line):
        training_volumes(tree)


def test_a_label_without_series_can_be_left_out(tree):
    lose_series(tree)
    assert len(training_volumes(tree, allow_unpaired=True)) == 2


def test_labels_with_and_without_names_or_two_series_in_a_case_are_one_line(tmp_path):
    write_cases(tmp_path)
    write_nifti(tmp_path / "masks" / "two.nii.gz", LIVER.astype(np.uint8), LPS)
    (tmp_path / "masks" / "two.dcm").unlink()
    with pytest.raises(DataError, match=r"names its classes, and .*two.nii.gz does not"):
        training_volumes(tmp_path)
    write_series(tmp_path / "images" / "one" / "again", voxels(), LPS)
    with pytest.raises(DataError, match="one: holds 2 series; keep one"):
        training_volumes(tmp_path)


def test_single_frames_beside_their_masks_are_images(tmp_path):
    for name in ("a", "b", "c"):
        write_picture(tmp_path / "images" / f"{name}.dcm", np.zeros((4, 5, 3), np.uint8))
        write_picture(tmp_path / "masks" / f"{name}.dcm", np.eye(4, 5, dtype=np.uint8))
    records = find_in_folder(tmp_path, (), volume_config(tmp_path))["train"]()
    assert (records.dims, len(records)) == (2, 3)
