"""DICOM through the scripts: a network that copies brightness marks the bright voxels, whoever reads its labels.

Modules: data_utils/sources/dicom.py, tasks/prediction_format.py.
"""

import json
import shutil
from pathlib import Path

import highdicom
import nibabel
import numpy as np
import pydicom
import pytest
import torch
from PIL import Image
from support.dicom import (
    GRIDS,
    SECRETS,
    bits_by_highdicom,
    upright,
    write_multiframe,
    write_picture,
    write_segments,
    write_series,
    write_structures,
)
from support.in_process import run_predict, run_train
from support.networks import tiny
from support.volumes import write_nifti

from data_utils.image_io.formats import Segments, VolumeFile
from data_utils.image_io.volumes import read_label_volume
from unet import Preprocess, UNet, UNetConfig


def copying(names: tuple[str, ...], thresholds: tuple[float, ...], **preprocess) -> UNet:
    """A network of volumes whose classes are the levels of brightness between the thresholds, from 0 up."""
    fields = {"class_names": names, "class_values": tuple(range(len(names)))} | preprocess
    network = UNet(UNetConfig(1, len(names), dims=3, base_channels=1, depth=1, preprocess=Preprocess(**fields)))
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if not name.endswith(("running_var", "norm1.weight", "norm2.weight")):
                tensor.zero_()
        for block in (network.stem, network.ups[0].conv):
            for conv in (block.conv1, block.conv2):
                conv.weight[0, 0, 1, 1, 1] = 1  # the voxel itself; what comes from the level below counts 0
        # a line for each class, of which the highest one changes at each threshold
        for index in range(len(names)):
            network.head.conv.weight[index] = index
            network.head.conv.bias[index] = -sum(thresholds[:index])
    return network.eval()


SHAPE = (12, 14, 10)
NAMES = ("background", "liver", "tumor")
LEVELS = np.zeros(SHAPE, np.int16)  # columns, rows, slices: a mark in one corner, and another beside it
LEVELS[0:4, 0:3, 0:2] = 1
LEVELS[8:11, 2:7, 4:9] = 2
VOXELS = LEVELS * 100 + 4  # of which the values are 1, 201 and 401
LPS = GRIDS["LPS"]
LIVER_OUTLINE = [(-0.5, -0.5), (3.5, -0.5), (3.5, 2.5), (-0.5, 2.5)]
LIVER_CONTOURS = [("liver", z, LIVER_OUTLINE) for z in range(2)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    copying(NAMES, (101, 301)).save_pretrained(folder)
    return folder


def predict(model: Path, source: Path, output: Path, *flags: str | Path):
    return run_predict("--model", model, "--input", source, "--output", output, *flags)


def marks_in_segmentation(path: Path, affine: np.ndarray) -> np.ndarray:
    """(column, row, slice) of a series on this grid, as highdicom reads its segmentation: 1 is liver, 2 is tumor."""
    assert [segment.SegmentLabel for segment in pydicom.dcmread(path).SegmentSequence] == ["liver", "tumor"]
    return bits_by_highdicom(path, affine, SHAPE)


@pytest.mark.parametrize(
    "names",
    [["LPS", "RAS", "PIR", "SLA", "ALI", "oblique"], pytest.param([*GRIDS], marks=pytest.mark.slow)],
    ids=["some", "all 48"],
)
def test_predictions_lie_on_what_is_bright_in_all_orientations_and_oblique_ones(tmp_path, model, names):
    grids = {name: GRIDS[name] for name in names}
    for name, affine in grids.items():
        write_series(tmp_path / "in" / name, VOXELS, affine, [f"IM{k:03}" for k in range(SHAPE[2])])
    result = predict(model, tmp_path / "in", tmp_path / "out", "--also", "nifti", "rtstruct")
    assert result.returncode == 0, result.stderr
    assert len(GRIDS) == 50
    for name, affine in grids.items():
        np.testing.assert_array_equal(marks_in_segmentation(tmp_path / "out" / f"{name}.dcm", affine), LEVELS)
        source = VolumeFile(tuple(map(str, sorted((tmp_path / "in" / name).iterdir()))), is_series=True)
        contours = str(tmp_path / "out" / f"{name}.rtstruct.dcm")
        segments = Segments((("liver", 1), ("tumor", 2)))
        marks, _ = read_label_volume(VolumeFile((contours,), grid_of=source, segments=segments), "case")
        np.testing.assert_array_equal(marks, upright(LEVELS, affine))
        nifti = nibabel.as_closest_canonical(nibabel.load(tmp_path / "out" / f"{name}.nii.gz"))
        np.testing.assert_array_equal(np.asarray(nifti.dataobj).transpose(2, 1, 0), upright(LEVELS, affine))
        np.testing.assert_allclose(
            nifti.affine, nibabel.as_closest_canonical(nibabel.Nifti1Image(LEVELS, affine)).affine, atol=1e-4
        )


def test_a_series_is_predicted_as_the_nifti_file_of_its_anatomy(tmp_path, model):
    noise = np.random.default_rng(0).integers(-90, 400, SHAPE).astype(np.int16)
    for name in ("PIR", "oblique"):
        write_series(tmp_path / "in" / name, noise, GRIDS[name])
        write_nifti(tmp_path / "in" / f"{name}_nifti.nii.gz", 2 * noise - 7, GRIDS[name])
    assert predict(model, tmp_path / "in", tmp_path / "out").returncode == 0
    for name in ("PIR", "oblique"):
        expected = np.asarray(nibabel.load(tmp_path / "out" / f"{name}_nifti.nii.gz").dataobj)
        assert len(np.unique(expected)) == 3
        np.testing.assert_array_equal(marks_in_segmentation(tmp_path / "out" / f"{name}.dcm", GRIDS[name]), expected)


@pytest.fixture
def scans(tmp_path) -> Path:
    """Two series of a study in one folder, a multi-frame file, and a label, a report and a picture among them."""
    folder = tmp_path / "scans"
    first = write_series(folder / "study" / "all", VOXELS, LPS, [f"a{k}" for k in range(SHAPE[2])])
    write_series(folder / "study" / "all", VOXELS, GRIDS["PIR"], [f"b{k}" for k in range(SHAPE[2])])
    write_multiframe(folder / "frames" / "file", VOXELS, LPS, [3, 1, 2, 0, *range(4, 10)])
    write_segments(folder / "study" / "seg" / "1", first, {"liver": LEVELS == 1, "tumor": LEVELS == 2})
    shutil.copy(pydicom.data.get_testdata_file("DICOMDIR"), folder / "DICOMDIR")
    return folder


def test_every_series_of_a_folder_gets_a_segmentation_of_its_name(tmp_path, model, scans):
    result = predict(model, scans, tmp_path / "out", "--overlay")
    assert result.returncode == 0, result.stderr
    assert "left out 1 file that is a DICOM label, the first is study/seg/1" in result.stdout
    assert "neither image nor label of DICOM, the first is DICOMDIR" in result.stdout
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.dcm")}
    assert names == {"study/all/series_1.dcm", "study/all/series_2.dcm", "frames.dcm"}
    grids = {"study/all/series_1": LPS, "study/all/series_2": GRIDS["PIR"], "frames": LPS}
    for name, affine in grids.items():
        np.testing.assert_array_equal(marks_in_segmentation(tmp_path / "out" / f"{name}.dcm", affine), LEVELS)
        assert (tmp_path / "out" / f"{name}.overlay.png").is_file()
    again = predict(model, scans, tmp_path / "out", "--overlay")
    assert "3 of 3 masks are there already" in again.stdout


def test_a_folder_of_one_series_a_pattern_and_its_files_name_the_same_series(tmp_path, model):
    slices = write_series(tmp_path / "case 7", VOXELS, LPS, [f"1.2.{k}" for k in range(SHAPE[2])])
    predict(model, tmp_path / "case 7", tmp_path / "folder")
    predict(model, tmp_path / "case*", tmp_path / "pattern")
    predict(model, tmp_path / "case 7" / "1*", tmp_path / "files")
    run_predict("--model", model, "--input", *slices, "--output", tmp_path / "by shell")
    result = predict(model, tmp_path / "case 7", tmp_path / "named.dcm")
    assert result.returncode == 0, result.stderr
    for path in ("folder/case 7.dcm", "pattern/case 7.dcm", "files/case 7.dcm", "by shell/case 7.dcm", "named.dcm"):
        np.testing.assert_array_equal(marks_in_segmentation(tmp_path / path, LPS), LEVELS)


def test_what_was_read_stays_as_it_is(tmp_path, model):
    paths = write_series(tmp_path / "in", VOXELS, LPS)
    before = [path.read_bytes() for path in paths]
    assert predict(model, tmp_path / "in", tmp_path / "in.dcm").returncode == 0
    refused = predict(model, tmp_path / "in", paths[0], "--overwrite")
    assert refused.returncode != 0
    assert "is read by this call, not to be overwritten" in refused.stderr
    assert [path.read_bytes() for path in paths] == before


TRUTHS = ("by reference", "by name", "in the tree of the series", "structures", "nifti")


@pytest.mark.parametrize("kind", TRUTHS)
def test_truth_is_taken_from_segmentations_structures_and_nifti(tmp_path, model, kind):
    paths = write_series(tmp_path / "in" / "case", VOXELS, LPS)
    truth = tmp_path / "truth"
    masks = {"tumor": LEVELS == 2, "liver": LEVELS == 1, "bone": np.zeros(SHAPE, bool)}
    if kind == "by reference":
        write_segments(truth / "study" / "1-1", paths, masks)
    elif kind == "by name":
        path = write_segments(truth / "case.dcm", paths, masks)
        dataset = pydicom.dcmread(path)
        del dataset.ReferencedSeriesSequence
        dataset.save_as(path)
    elif kind == "structures":
        write_structures(truth / "rt.dcm", paths[0], LPS, LIVER_CONTOURS)
    elif kind == "nifti":
        write_nifti(truth / "case.nii.gz", LEVELS, LPS)
    else:
        truth = tmp_path / "in"
        write_segments(truth / "seg" / "1", paths, masks)
    result = predict(model, tmp_path / "in", tmp_path / "out", "--truth", truth)
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "out" / "metrics.json").read_text())
    _, liver, tumor = report["iou"]
    assert liver == 1
    assert tumor == (0 if kind == "structures" else 1)
    again = predict(model, tmp_path / "in", tmp_path / "out", "--truth", truth)
    assert json.loads((tmp_path / "out" / "metrics.json").read_text()) == report, again.stderr


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["bone"], "0.dcm: marks bone; the model has liver, tumor"),
        (["liver", "liver"], "1.dcm both mark liver in one series; keep one of them"),
    ],
    ids=["other names", "two readers"],
)
def test_truth_that_names_no_class_or_one_twice_is_one_line(tmp_path, model, names, line):
    paths = write_series(tmp_path / "in", VOXELS, LPS)
    for number, name in enumerate(names):
        write_segments(tmp_path / "truth" / f"{number}.dcm", paths, {name: LEVELS == 1})
    result = predict(model, tmp_path / "in", tmp_path / "out", "--truth", tmp_path / "truth")
    assert result.returncode == 1
    assert line in result.stderr


def test_a_damaged_series_is_one_line_and_the_others_are_written(tmp_path, model):
    write_series(tmp_path / "in" / "good", VOXELS, LPS)
    paths = write_series(tmp_path / "in" / "gap", VOXELS, LPS)
    paths[4].unlink()
    cut = write_series(tmp_path / "in" / "cut", VOXELS, LPS)[2]
    cut.write_bytes(cut.read_bytes()[:-50])
    (tmp_path / "in" / "good" / "older.dcm").write_bytes(b"no mark")
    result = predict(model, tmp_path / "in", tmp_path / "out")
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if "failed" in line]
    assert len(lines) == 3
    assert f"{cut}: " in lines[0]
    assert "mm apart, others" in lines[1]
    assert "older.dcm" in lines[2]
    assert not any(secret in result.stderr for secret in SECRETS)
    assert {path.name for path in (tmp_path / "out").glob("*.dcm")} == {"good.dcm"}


def test_also_is_for_series_alone(tmp_path, model):
    write_nifti(tmp_path / "case.nii.gz", VOXELS, LPS)
    result = predict(model, tmp_path / "case.nii.gz", tmp_path / "out", "--also", "rtstruct")
    assert result.returncode == 1
    assert "--also rtstruct" in result.stderr
    assert "is no DICOM series" in result.stderr


def test_a_single_frame_is_an_image_and_gets_a_picture(tmp_path):
    UNet(tiny(num_classes=2, in_channels=3)).save_pretrained(tmp_path / "model")
    write_picture(tmp_path / "in" / "a.dcm", np.zeros((20, 30, 3), np.uint8))
    write_picture(tmp_path / "in" / "without extension", np.zeros((20, 30, 3), np.uint8))
    result = predict(tmp_path / "model", tmp_path / "in", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    for name in ("a.png", "without extension.png"):
        assert Image.open(tmp_path / "out" / name).size == (30, 20)


@pytest.fixture(scope="module")
def overlapping_run(tmp_path_factory):
    """A run on series of which each has a body that holds a liver."""
    folder = tmp_path_factory.mktemp("run")
    for number in range(3):
        voxels = VOXELS + np.random.default_rng(number).integers(0, 9, SHAPE).astype(np.int16)
        paths = write_series(folder / "data" / f"{number}" / "ct", voxels, LPS)
        body = [("body", z, [(-0.4, -0.4), (11.4, -0.4), (11.4, 13.4), (-0.4, 13.4)]) for z in range(SHAPE[2])]
        write_structures(folder / "data" / f"{number}" / "rt.dcm", paths[0], LPS, [*body, *LIVER_CONTOURS])
    flags = ("--dataset", folder / "data", "--max-steps", "2", "--batch-size", "1", "--base-channels", "4")
    return run_train(folder / "run", *flags, "--depth", "2", "--tracker", "tensorboard", figures=True)


def test_structures_that_overlap_are_trained_and_written_as_one_segmentation(tmp_path, overlapping_run):
    assert overlapping_run.exit_code == 0, overlapping_run.output
    assert overlapping_run.config["task"] == {"name": "overlapping"}
    data = overlapping_run.folder.parent / "data"
    flags = ("--truth", data, "--also", "nifti", "rtstruct")
    result = predict(overlapping_run.folder / "model", data, tmp_path / "out", *flags)
    assert result.returncode == 0, result.stderr
    segmentation = highdicom.seg.segread(tmp_path / "out" / "0" / "ct.dcm")
    assert [segment.SegmentLabel for segment in segmentation.SegmentSequence] == ["body", "liver"]
    source = VolumeFile(tuple(map(str, sorted((data / "0" / "ct").iterdir()))), is_series=True)
    segments = Segments((("body", 0), ("liver", 1)), are_bits=True)
    for name in ("ct.dcm", "ct.rtstruct.dcm"):
        label = VolumeFile((str(tmp_path / "out" / "0" / name),), grid_of=source, segments=segments)
        bits = read_label_volume(label, "case")[0]
        for bit, class_name in enumerate(("body", "liver")):
            nifti = VolumeFile((str(tmp_path / "out" / class_name / "0" / "ct.nii.gz"),))
            np.testing.assert_array_equal(bits >> bit & 1, read_label_volume(nifti, "case")[0] // 255)


def test_nothing_of_the_patient_is_in_a_run_or_beside_a_prediction(tmp_path, model, overlapping_run):
    paths = write_series(tmp_path / "in" / "case", VOXELS, LPS)
    write_segments(tmp_path / "in" / "seg", paths, {"liver": LEVELS == 1, "tumor": LEVELS == 2})
    flags = ("--truth", tmp_path / "in", "--overlay", "--probabilities", "--uncertainty", "--also", "nifti", "rtstruct")
    result = predict(model, tmp_path / "in", tmp_path / "out", *flags)
    assert result.returncode == 0, result.stderr
    check = run_train(tmp_path / "check", "--dataset", overlapping_run.folder.parent / "data", "--check-data")
    texts = [overlapping_run.output, check.output, result.stdout, result.stderr]
    files = [path for folder in (overlapping_run.folder, tmp_path / "out") for path in folder.rglob("*")]
    assert {"report.html", "run.json", "README.md", "metrics.jsonl"} <= {path.name for path in files}
    assert any("tfevents" in path.name for path in files)
    for path in files:
        texts.append(str(path))
        if path.is_file() and path.suffix != ".dcm":  # labels belong to the patient, as the standard demands
            texts.append(path.read_bytes().decode("latin-1"))
    for secret in SECRETS:
        assert not any(secret in text for text in texts), secret
