"""A task that the packages do not know, tests/programs/grey_task.py, trains and predicts as classes do."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import yaml
from PIL import Image
from support.in_process import Run, run_train
from support.launches import PROGRAMS, TINY, launch, predict
from support.run_files import last_checkpoint, records

GREY_TASK = PROGRAMS / "grey_task.py"
BRIGHTEST = 255  # more values than classes may have
SMALL = [*TINY, "--norm", "batch"]  # tiles change nothing, which a norm over whole images would not allow
LENGTH = ["--max-steps", "40", "--log-every", "10", "--eval-every", "10", "--checkpoint-every", "10"]
FLAGS = [*SMALL, *LENGTH, "--keep-checkpoints", "4", "--batch-size", "4", "--learning-rate", "0.02"]


def predict_grey(model: Path, folder: Path, output: Path, *flags: str) -> tuple[str, dict]:
    """What predict.py prints of the large images, and its metrics.json."""
    inputs = ["--model", model, "--input", folder / "images", "--output", output, "--truth", folder / "masks"]
    result = launch(GREY_TASK, "predict.py", *inputs, "--probabilities", *flags)
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads((output / "metrics.json").read_text())


def write_waves(folder: Path, sizes: list[tuple[int, int]], seed: int) -> None:
    """Noisy grey images of these sizes, and masks that hold their brightness before the noise."""
    rng = np.random.default_rng(seed)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for index, size in enumerate(sizes):
        rows, columns = np.indices(size)
        slope, tilt, phase = rng.uniform((0.05, 0.05, 0), (0.2, 0.2, 6))
        waves = 0.5 + 0.5 * np.sin(slope * rows + tilt * columns + phase)
        image = (200 * waves + rng.normal(20, 15, size)).clip(0, 255)
        for kind, pixels in (("images", image), ("masks", BRIGHTEST * waves)):
            Image.fromarray(pixels.round().astype(np.uint8)).save(folder / kind / f"{index:02}.png")


def read(file: Path) -> np.ndarray:
    """The pixels of a picture, as numbers that can be subtracted."""
    return np.array(Image.open(file)).astype(int)


def true_masks(folder: Path) -> list[np.ndarray]:
    return [read(file) for file in sorted((folder / "masks").iterdir())]


def closeness(output: Path) -> list[float]:
    return [record["eval/closeness"] for record in records(output) if "eval/closeness" in record]


class Prediction(NamedTuple):
    """A prediction of the large images: its folder, what was printed, and metrics.json."""

    folder: Path
    printed: str
    metrics: dict

    def masks(self) -> list[np.ndarray]:
        return [read(file) for file in sorted(self.folder.glob("[0-9][0-9].png"))]

    def probabilities(self) -> list[np.ndarray]:
        return [np.load(file) for file in sorted(self.folder.glob("*.npy"))]


@pytest.fixture(scope="module")
def waves(tmp_path_factory) -> Path:
    """11 training and 5 validation images, and under large/ two to predict in tiles."""
    folder = tmp_path_factory.mktemp("waves")
    write_waves(folder / "train", [(40, 56)] * 11, seed=0)
    write_waves(folder / "val", [(40, 56), (40, 56), (32, 40), (48, 48), (40, 40)], seed=1)
    write_waves(folder / "large", [(150, 130), (90, 170)], seed=2)
    return folder


@pytest.fixture(scope="module")
def grey_run(waves, tmp_path_factory) -> Path:
    """The output folder of a run of the grey task."""
    output = tmp_path_factory.mktemp("runs") / "grey"
    flags = ["--task", "grey", "--dataset", waves, "--output-dir", output, *FLAGS]
    result = launch(GREY_TASK, "train.py", *flags)
    assert result.returncode == 0, result.stderr
    return output


@pytest.fixture(scope="module")
def classes_run(tiny_folder, tmp_path_factory) -> Run:
    """A run of a step that learns classes."""
    output = tmp_path_factory.mktemp("runs") / "classes"
    run = run_train(output, "--dataset", tiny_folder, *SMALL, "--max-steps", "1", "--tracker", "none")
    assert run.exit_code == 0, run.output
    return run


def test_another_task_learns_and_is_recorded_under_its_own_scores(grey_run, waves):
    truth = np.concatenate([mask.ravel() for mask in true_masks(waves / "val")])
    of_one_grey = 1 - np.abs(truth - np.median(truth)).mean() / 255
    assert max(closeness(grey_run)) > 0.9 > 0.75 > of_one_grey  # measured 0.947
    evaluations = [record for record in records(grey_run) if "eval/loss" in record]
    assert [record["step"] for record in evaluations] == [10, 20, 30, 40]
    for record in evaluations:
        keys = {key for key in record if "/" in key}
        assert keys == {"eval/loss", "eval/closeness", "eval/grey_error"}


def test_a_model_card_has_the_scores_of_another_task(grey_run):
    best = max(closeness(grey_run))
    card = (grey_run / "model" / "README.md").read_text()
    result = yaml.safe_load(card.split("---")[1])["model-index"][0]["results"][0]
    assert result["task"]["name"] == "Semantic segmentation"  # as of every task that says nothing else
    assert {metric["type"]: metric["value"] for metric in result["metrics"]}["closeness"] == round(best, 6)
    assert f"closeness {best:.4f}" in card


def test_config_json_names_every_task_but_classes(grey_run, classes_run):
    assert json.loads((grey_run / "model" / "config.json").read_text())["task"] == {"name": "grey"}
    assert classes_run.config["task"] is None


def test_a_checkpoint_of_another_task_is_refused_by_both_names(classes_run, tiny_folder, tmp_path, fails_with):
    arguments = ["train.py", "--task", "grey", "--dataset", tiny_folder, "--output-dir", tmp_path, *SMALL]
    arguments += ["--max-steps", "1", "--tracker", "none", "--resume", last_checkpoint(classes_run.folder)]
    fails_with(launch(GREY_TASK, *arguments), "the checkpoint's task is classes, this run's is grey", 1)


@pytest.fixture(scope="module")
def whole(grey_run, waves, tmp_path_factory) -> Prediction:
    """The large images predicted as a whole, with overlays."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    return Prediction(folder, *predict_grey(grey_run / "model", waves / "large", folder, "--overlay"))


@pytest.fixture(scope="module")
def tiled(grey_run, waves, tmp_path_factory) -> Prediction:
    """The large images predicted in tiles."""
    folder = tmp_path_factory.mktemp("tiles") / "out"
    return Prediction(folder, *predict_grey(grey_run / "model", waves / "large", folder, "--tile-size", "64"))


def test_tiles_predict_what_the_whole_image_does(whole, tiled):
    assert "tiles of" not in whole.printed
    assert "2 images in tiles of 64 x 64 overlapping by 48 (equal to the whole image's result)" in tiled.printed
    for ours, theirs in zip(whole.probabilities(), tiled.probabilities(), strict=True):
        # float32: measured 1.2e-7; a value between two greys may then be rounded the other way
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    for ours, theirs in zip(whole.masks(), tiled.masks(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1)


def test_a_mask_is_the_rounded_prediction(whole, waves):
    truths = true_masks(waves / "large")
    for mask, probabilities, truth in zip(whole.masks(), whole.probabilities(), truths, strict=True):
        assert probabilities.shape == (1, *truth.shape)
        assert (mask == (255 * probabilities[0]).round()).all()


def test_scores_of_another_task_are_written(whole, tiled, waves):
    pairs = zip(whole.masks(), true_masks(waves / "large"), strict=True)
    errors = [np.abs(mask - truth) for mask, truth in pairs]
    error = np.concatenate([image.ravel() for image in errors]).mean()
    assert whole.metrics["grey_error"] == pytest.approx(error)
    by_image = sorted(image["grey_error"] for image in whole.metrics["by_image"])
    assert by_image == pytest.approx(sorted(image.mean() for image in errors))
    assert tiled.metrics["grey_error"] == pytest.approx(error, abs=1e-3)
    assert tiled.metrics["pixels"] == whole.metrics["pixels"] == sum(image.size for image in errors)


def test_a_script_that_does_not_know_the_task_refuses_its_model(grey_run, waves, tmp_path, fails_with):
    result = predict(grey_run / "model", [waves / "large"], tmp_path / "out")
    fails_with(result, "the model was trained for the task 'grey', which this version does not know", 1)
