"""Runs of classes that overlap and of regions: from folders of masks to scores, files and the report.

Modules: tasks/overlapping/write.py, tasks/overlapping/show.py, inference/true_masks.py.
"""

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image
from support.in_process import Run, run_train
from support.launches import TINY, predict
from support.overlaps import NAMES, labels_of, true_masks, write_overlaps
from support.volumes import case, write_nifti

from inference import Predictor
from runtime.errors import CheckpointError

FLAGS = [*TINY, "--max-steps", "60", "--batch-size", "4", "--learning-rate", "0.01", "--class-weights", "auto"]
FLAGS += ["--eval-every", "30", "--checkpoint-every", "56", "--ema-decay", "0.5"]
REGIONS = "whole=1+2+3;core=2+3;active=3"


def data_set(folder: Path, layout: str = "folders") -> Path:
    write_overlaps(folder / "train", 8, seed=0, layout=layout)
    write_overlaps(folder / "val", 5, seed=1, layout=layout)
    return folder


def read(file: Path) -> np.ndarray:
    return np.array(Image.open(file))


def written(folder: Path) -> np.ndarray:
    """The masks of all classes and validation images, (5, 3, H, W) bool."""
    masks = [[read(folder / name / f"{number:02}.png") == 255 for name in NAMES] for number in range(5)]
    return np.array(masks)


def iou(truth: np.ndarray, found: np.ndarray) -> list[float]:
    """The IoU of each class, from masks (images, classes, H, W)."""
    axes = (0, 2, 3)
    return ((truth & found).sum(axes) / (truth | found).sum(axes)).tolist()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return data_set(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Run:
    result = run_train(tmp_path_factory.mktemp("runs") / "overlaps", "--dataset", data, *FLAGS)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def predicted(run, data, tmp_path_factory) -> Path:
    """The folder of all outputs for the validation images."""
    output = tmp_path_factory.mktemp("predicted")
    flags = ["--truth", data / "val" / "masks", "--probabilities", "--overlay"]
    result = predict(run.folder / "model", [data / "val" / "images"], output, *flags)
    assert result.returncode == 0, result.stderr
    return output


def test_run_knows_that_classes_may_overlap_and_learns_them(run):
    assert "classes that may overlap blue, green, red" in run.output
    assert run.settings["identity"]["task"] == "overlapping"
    assert run.settings["identity"]["classes"] == [*NAMES]
    assert run.config["task"] == {"name": "overlapping"}
    assert run.config["preprocess"]["class_names"] == [*NAMES]
    assert run.values("eval/mean_iou")[-1] > 0.4  # measured 0.593
    for name in NAMES:
        assert len(run.values(f"eval/iou/{name}")) == len(run.values(f"eval/dice/{name}")) == 2
    report = (run.folder / "report.html").read_text()
    assert "A pixel may have several classes" in report
    assert "wrongly found" in report


def test_masks_of_each_class_are_scored(run, predicted):
    report = json.loads((predicted / "metrics.json").read_text())
    assert report["classes"] == [*NAMES]
    assert report["iou"] == pytest.approx(iou(np.stack(true_masks(5, seed=1)), written(predicted)), abs=1e-15)
    assert report["mean_iou"] == pytest.approx(np.mean(report["iou"]))
    assert report["mean_iou"] == pytest.approx(max(run.values("eval/mean_iou")), abs=1e-3)


def test_masks_of_each_class_are_there_where_its_probability_is_above_half(predicted):
    for number in range(5):
        probabilities = np.load(predicted / f"{number:02}.npy")
        assert ((probabilities > 0.5) == written(predicted)[number]).all()


def test_masks_that_are_there_are_scored_alike(run, data, predicted):
    first = json.loads((predicted / "metrics.json").read_text())
    images = [data / "val" / "images"]
    flags = ["--truth", data / "val" / "masks", "--probabilities", "--overlay"]
    result = predict(run.folder / "model", images, predicted, *flags)
    assert result.returncode == 0
    assert "5 of 5 masks are there already" in result.stdout
    assert json.loads((predicted / "metrics.json").read_text()) == first


def test_views_networks_and_tiles_are_averaged(run, data, tmp_path):
    result = predict(
        run.folder / "model",
        [data / "val" / "images"],
        tmp_path,
        *("--truth", data / "val" / "masks", "--tta", "--tile-size", "32", "--ensemble", run.folder / "model"),
    )
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "metrics.json").read_text())
    assert report["iou"] == pytest.approx(iou(np.stack(true_masks(5, seed=1)), written(tmp_path)), abs=1e-15)
    assert report["mean_iou"] > 0.5


def test_one_image_may_be_written_as_a_tiff_of_pages(run, data, predicted, tmp_path, fails_with):
    image = data / "val" / "images" / "00.png"
    fails_with(predict(run.folder / "model", [image], tmp_path / "mask.png"), "have a mask each; give a folder", 1)
    result = predict(run.folder / "model", [image], tmp_path / "00.tif", "--truth", data / "val" / "masks")
    assert result.returncode == 0, result.stderr
    with tifffile.TiffFile(tmp_path / "00.tif") as file:
        pages = np.stack([page.asarray() for page in file.pages])
    assert (pages == written(predicted)[0]).all()


def test_unknown_pixels_of_true_masks_count_for_no_score(tmp_path):
    data, run = write_overlaps(tmp_path / "data", 5, seed=1), tmp_path / "run"
    for file in data.glob("masks/*/*.png"):
        mask = read(file)
        mask[:20] = 128
        Image.fromarray(mask).save(file)
    flags = [*TINY, "--max-steps", "2", "--ignore-index", "7,128", "--val-fraction", "0.5"]
    assert run_train(run, "--dataset", data, *flags).exit_code == 0
    for truth in (data, data / "masks"):
        result = predict(run / "model", [data / "images"], tmp_path / f"by {truth.name}", "--truth", truth)
        assert result.returncode == 0, result.stderr
        report = json.loads((tmp_path / f"by {truth.name}" / "metrics.json").read_text())
        below = np.stack(true_masks(5, seed=1))[..., 20:, :], written(tmp_path / f"by {truth.name}")[..., 20:, :]
        assert report["iou"] == pytest.approx(iou(*below), abs=1e-15)
        assert np.sum(report["tables"]) == 5 * 3 * 20 * 56


def test_mask_of_a_predictor_has_a_bit_for_each_class(run, data, predicted):
    bits = Predictor(run.folder / "model").mask(data / "val" / "images" / "00.png")
    assert bits.dtype == np.int32
    assert (np.stack([bits >> bit & 1 == 1 for bit in range(3)]) == written(predicted)[0]).all()


def test_a_resumed_run_ends_as_if_it_had_never_stopped(run, data, tmp_path):
    half = run.folder / "checkpoints" / "step-00000056"
    resumed = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--resume", half)
    assert resumed.exit_code == 0, resumed.output
    assert resumed.values("eval/mean_iou")[-1] == run.values("eval/mean_iou")[-1]


def test_run_with_classes_in_another_order_is_no_continuation(run, data, tmp_path):
    half = run.folder / "checkpoints" / "step-00000056"
    with pytest.raises(CheckpointError, match="the checkpoint's classes is"):
        run_train(tmp_path / "other", "--dataset", data, *FLAGS, "--classes", "red,blue,green", "--resume", half)


def test_label_map_of_regions_is_scored_by_region_as_by_label(tmp_path):
    data = data_set(tmp_path / "data", "labels")
    flags = [*TINY, "--max-steps", "25", "--batch-size", "4", "--learning-rate", "0.03", "--tracker", "none"]
    run = run_train(tmp_path / "run", "--dataset", data, *flags, "--regions", REGIONS)
    assert run.exit_code == 0, run.output
    assert run.settings["identity"]["classes"] == REGIONS.split(";")
    assert "label 1" in (run.folder / "report.html").read_text()
    output, truth = tmp_path / "out", data / "val" / "masks"
    for _ in range(2):  # the second time the masks are there
        result = predict(run.folder / "model", [data / "val" / "images"], output, "--truth", truth, "--overlay")
        assert result.returncode == 0, result.stderr
        report = json.loads((output / "metrics.json").read_text())
        labels = np.stack([labels_of(masks) for masks in true_masks(5, seed=1)])
        predicted_labels = np.stack([read(output / f"{number:02}.png") for number in range(5)])
        for value, (of_region, of_label) in enumerate(zip(report["dice"], report["of_labels"]["dice"], strict=True), 1):
            assert of_region == pytest.approx(dice(labels >= value, predicted_labels >= value))
            assert of_label == pytest.approx(dice(labels == value, predicted_labels == value))
    assert report["dice"][0] > 0.5


def test_volumes_are_scored_class_by_class(tmp_path):
    for seed in range(2):
        image, label = case(seed, (12, 16, 12))
        write_nifti(tmp_path / "images" / f"c{seed}.nii.gz", image)
        for name, lowest in (("inner", 2), ("whole", 1)):
            write_nifti(tmp_path / "masks" / name / f"c{seed}.nii.gz", (label >= lowest).astype(np.uint8))
    flags = [*TINY, "--max-steps", "6", "--batch-size", "2", "--learning-rate", "0.05", "--tracker", "none"]
    run = run_train(tmp_path / "run", "--dataset", tmp_path, *flags)
    assert run.exit_code == 0, run.output
    reports = []
    for _ in range(2):  # the second time the masks are there
        truth = ["--truth", tmp_path / "masks", "--overlay", "--probabilities"]
        result = predict(run.folder / "model", [tmp_path / "images"], tmp_path / "out", *truth)
        assert result.returncode == 0, result.stderr
        reports.append(json.loads((tmp_path / "out" / "metrics.json").read_text()))
    assert reports[0] == reports[1]
    assert reports[0]["by_case"]["classes"] == ["inner", "whole"]
    for index, name in enumerate(("inner", "whole")):
        predicted_volumes, true = [], []
        for seed in range(2):
            predicted_volumes.append(nibabel.load(tmp_path / "out" / name / f"c{seed}.nii.gz").get_fdata() == 255)
            true.append(nibabel.load(tmp_path / "masks" / name / f"c{seed}.nii.gz").get_fdata() == 1)
        assert reports[0]["dice"][index] == pytest.approx(dice(np.stack(true), np.stack(predicted_volumes)))


def dice(truth: np.ndarray, found: np.ndarray) -> float | None:
    pixels = truth.sum() + found.sum()
    return 2 * (truth & found).sum() / pixels if pixels else None
