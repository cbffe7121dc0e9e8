"""Landmarks as a user has them: found in the data, trained, predicted, scored and shown.

Modules: tasks/landmarks/show.py, tasks/landmarks/write.py.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.in_process import Run, run_train
from support.launches import TINY, predict
from support.points import NAMES, SIZE, WRITERS, write_dots
from support.rasters import write_raster

from data_utils.config import DataConfig
from data_utils.point_states import PRESENT
from data_utils.sources.points import files
from inference import Predictor
from inference.export.onnx import export_onnx
from runtime.errors import CheckpointError
from tasks.landmarks.loss import Landmarks
from train_utils.dataset import load_dataset_info
from unet import UNet

FLAGS = [*TINY, "--norm", "batch", "--batch-size", "4", "--base-channels", "8", "--augment", "mirror"]
FLAGS += ["--optimizer", "muon", "--learning-rate", "0.01"]
LENGTH = ["--max-steps", "40", "--eval-every", "20", "--checkpoint-every", "36", "--log-every", "20"]
SPLIT = ["--absent", "not-there", "--val-fraction", "0.3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images with dots, some of which are not there."""
    folder = tmp_path_factory.mktemp("dots")
    write_dots(folder, 24, seed=0, layout="deeplabcut", absent=0.3)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = run_train(tmp_path_factory.mktemp("runs") / "dots", folder, *FLAGS, *LENGTH, *SPLIT)
    assert run.exit_code == 0, run.output
    return run


def test_points_of_images_without_data_in_places_are_learned(tmp_path):
    bands = np.full((1, 24, 32), 50, np.uint8)
    bands[0, :, :5] = 0
    for name in "abc":
        write_raster(tmp_path / "data" / "images" / f"{name}.tif", bands, nodata=0)
    rows = ["image,landmark,x,y", *(f"{name}.tif,nose,{x},9" for name, x in zip("abc", (3, 10, 20), strict=True))]
    (tmp_path / "data" / "points.csv").write_text("\n".join(rows))
    run = run_train(tmp_path / "run", tmp_path / "data", *TINY, "--max-steps", "1", "--tracker", "none")
    assert run.exit_code == 0, run.output
    assert run.records[-1]["eval/mean_radial_error"] < 40


def test_a_run_finds_landmarks_in_the_data_and_learns_them(run):
    assert "3 landmarks: nose, ear, tail" in run.output
    assert run.settings["flags"]["task"] == "landmarks"
    assert run.config["task"]["names"] == list(NAMES)
    assert run.config["task"]["layout"] == "deeplabcut"
    assert run.records[-1]["eval/median_radial_error"] < 1.5
    assert run.records[-1]["eval/presence_auroc"] > 0.9
    assert {"eval/closeness", "eval/sdr/1_percent", "eval/mean_radial_error/tail"} <= run.records[-1].keys()
    assert "AUROC" in run.output


def metrics_of(output: Path) -> dict:
    """The scores that prediction has written."""
    return json.loads((output / "metrics.json").read_text())


WITH_ALL_FILES = ("--overlay", "--probabilities")


@pytest.fixture(scope="module")
def predicted(run: Run, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all files that prediction writes for the images of the data set."""
    output = tmp_path_factory.mktemp("predicted") / "out"
    result = predict(run.folder / "model", [folder / "images"], output, "--truth", folder, *WITH_ALL_FILES)
    assert result.returncode == 0, result.stderr
    assert "24 of 24 files of points" in result.stdout
    return output


def test_predicted_points_are_scored_and_come_in_the_format_of_the_data(predicted):
    metrics = metrics_of(predicted)
    assert metrics["median_radial_error"] < 1.5
    assert metrics["images"] == 24
    assert metrics["unit"] == "px"
    assert set(metrics["by_landmark"]) == set(NAMES)
    assert metrics["absent"] + metrics["present"] == 72
    assert metrics["presence_auroc"] > 0.9
    table = files.read_written(predicted / "points.csv", "deeplabcut")
    single = files.read_written(predicted / "frame_00.csv", "deeplabcut")
    assert table.names == NAMES
    assert len(table.images) == 24
    assert table.is_predicted
    assert np.load(predicted / "frame_00.npy").shape == (3, *SIZE)
    assert np.array_equal(single.positions[0], table.positions[table.images.index("frame_00.png")])


def test_a_predictor_finds_the_points_of_the_files(run, folder, predicted):
    landmarks = Predictor.from_pretrained(run.folder / "model").points(folder / "images" / "frame_00.png")
    single = files.read_written(predicted / "frame_00.csv", "deeplabcut")
    assert [landmark.name for landmark in landmarks] == list(NAMES)
    assert np.allclose([landmark.position[::-1] for landmark in landmarks], single.positions[0])


def test_points_that_are_predicted_already_are_scored_again(run, folder, predicted, tmp_path):
    shutil.copytree(predicted, tmp_path / "out")
    flags = ["--truth", folder, *WITH_ALL_FILES]
    again = predict(run.folder / "model", [folder / "images"], tmp_path / "out", *flags)
    assert "24 of 24 files of points are there already" in again.stdout
    before, after = metrics_of(predicted), metrics_of(tmp_path / "out")
    assert after["mean_radial_error"] == pytest.approx(before["mean_radial_error"])
    assert after["closeness"] == pytest.approx(before["closeness"])


def copied_model(run: Run, folder: Path, **values: object) -> Path:
    """A copy of the run's model whose task has other values."""
    shutil.copytree(run.folder / "model", folder)
    config = json.loads((folder / "config.json").read_text())
    config["task"] |= values
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# These formats list no absent points, and TPS neither names them nor counts from the top.
TASKS = {
    "labelme": {"absent": "unknown"},
    "coco": {"absent": "unknown"},
    "tps": {"absent": "unknown", "names": ["1", "2", "3"], "space": "pixels from the bottom"},
}


def scores_of(model: Path, images: Path, output: Path, truth: Path) -> list[float]:
    """The scores of a prediction whose points are hard to get right by chance."""
    result = predict(model, [images], output, "--truth", truth)
    assert result.returncode == 0, result.stderr
    metrics = metrics_of(output)
    return [metrics[key] for key in ("mean_radial_error", "closeness", "presence_recall", "outliers")]


@pytest.fixture(scope="module", params=WRITERS)
def layout(request) -> str:
    """A format of points of another program."""
    return request.param


@pytest.fixture(scope="module")
def of_other_program(run: Run, folder: Path, layout: str, tmp_path_factory) -> SimpleNamespace:
    """The data set in the layout, with a model for it: `data`, `model`, `output` of prediction, and its `scores`."""
    root = tmp_path_factory.mktemp(layout)
    table = files.FORMATS["deeplabcut"].read(folder / "points.csv")
    positions = np.where((table.states == PRESENT)[:, :, None], table.positions, np.nan)
    shutil.copytree(folder / "images", root / "data" / "images")
    WRITERS[layout](root / "data", list(table.images), positions)
    model = copied_model(run, root / "model", layout=layout, **TASKS[layout])
    scores = scores_of(model, folder / "images", root / "out", root / "data")
    return SimpleNamespace(data=root / "data", model=model, output=root / "out", scores=scores)


def test_scores_in_the_formats_of_other_programs_are_the_same(run, folder, of_other_program, tmp_path):
    model = copied_model(run, tmp_path / "model", absent="unknown")
    scores = scores_of(model, folder / "images", tmp_path / "out", folder)
    np.testing.assert_allclose(of_other_program.scores, scores, rtol=1e-9)


def test_points_are_written_in_the_formats_of_other_programs(layout, of_other_program):
    extension = files.FORMATS[layout].extension
    assert files.read(of_other_program.output / f"frame_00{extension}").layout == layout


SHARED_LAYOUTS = [layout for layout in WRITERS if files.FORMATS[layout].holds_several]


@pytest.mark.parametrize("layout", SHARED_LAYOUTS, indirect=True, scope="module")
def test_points_of_all_images_are_joined_where_the_format_holds_several(layout, of_other_program):
    joined = files.read(of_other_program.output / f"points{files.FORMATS[layout].extension}")
    assert len(joined.images) == 24
    assert joined.is_predicted


@pytest.mark.parametrize(("augment", "is_mirrored"), [("none", False), ("mirror", True)])
def test_mirror_images_are_averaged_if_training_has_seen_them(folder, augment, is_mirrored):
    info = load_dataset_info(DataConfig(dataset=str(folder), augment=augment))
    task = info.reader.task("ce", None)
    assert isinstance(task, Landmarks)
    assert task.averages_mirrored == is_mirrored
    other = replace(task, mirrors=True)
    assert task.meaning == other.meaning
    assert task.ensemble_task([other]).averages_mirrored == is_mirrored
    assert other.ensemble_task([task]).averages_mirrored == is_mirrored


def test_a_resumed_run_ends_with_the_same_weights(run, folder, tmp_path):
    checkpoint = run.folder / "checkpoints" / "step-00000036"
    resumed = run_train(tmp_path / "again", folder, *FLAGS, *LENGTH, *SPLIT, "--resume", checkpoint)
    assert resumed.exit_code == 0, resumed.output
    for name, weight in run.weights(40).items():
        assert torch.equal(weight, resumed.weights(40)[name])


def test_a_run_does_not_go_on_with_other_points(folder, tmp_path):
    """Another point has as many weights, and would be taken for the first one."""
    flags = [folder, *FLAGS, *SPLIT, "--tracker", "none"]
    assert run_train(tmp_path / "run", *flags, "--max-steps", "1", "--classes", "nose").exit_code == 0
    with pytest.raises(CheckpointError, match=r"the checkpoint's classes is \['nose'\], this run's is \['tail'\]"):
        run_train(tmp_path / "run", *flags, "--max-steps", "2", "--classes", "tail", "--resume", "auto")


def test_an_onnx_file_finds_the_same_points_and_writes_them_in_the_format_of_its_training(run, folder, tmp_path):
    onnx_model = tmp_path / "model.onnx"
    export_onnx(UNet.from_pretrained(run.folder / "model"), onnx_model)
    image = folder / "images" / "frame_03.png"
    own, exported = Predictor.from_pretrained(run.folder / "model"), Predictor.from_pretrained(onnx_model)
    assert exported.task == own.task
    for first, second in zip(own.points(image), exported.points(image), strict=True):
        assert first.name == second.name
        assert np.allclose(first.position, second.position, atol=0.01)
        assert first[2:] == pytest.approx(second[2:], abs=1e-3)
    result = predict(onnx_model, [image], tmp_path / "out")
    assert result.returncode == 0
    assert "precision" not in result.stdout  # it is float32, whatever the device has instructions for
    assert (tmp_path / "out" / "frame_03.csv").exists()


def test_true_points_that_are_not_there_are_a_one_line_error(run, folder, tmp_path, fails_with):
    write_dots(tmp_path / "other", 2, seed=0)
    result = predict(run.folder / "model", [folder / "images"], tmp_path / "out", "--truth", tmp_path / "other")
    fails_with(result, "lists no points of 22 inputs", 1)
