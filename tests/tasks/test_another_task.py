"""A task that the packages do not know, tests/programs/grey_task.py, trains and predicts as classes do.

Modules: tasks/target.py, data_utils/targets/reader.py, inference/decoding/decoder.py,
train_utils/reporting/section.py, train_utils/reporting/sections.py.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import PROGRAMS, TINY, launch, predict, records
from in_process import Run, run_train
from PIL import Image
from safetensors.torch import load_file

from inference import Predictor
from runtime.errors import ModelError
from train_utils.settings.starting_point import copy_weights
from unet import UNet, UNetConfig

GREY_TASK = PROGRAMS / "grey_task.py"
BRIGHTEST = 255  # more values than classes may have
SMALL = [*TINY, "--norm", "batch"]  # tiles change nothing, which a norm over whole images would not allow
LENGTH = ["--max-steps", "40", "--log-every", "10", "--eval-every", "10", "--checkpoint-every", "10"]
FLAGS = [*SMALL, *LENGTH, "--keep-checkpoints", "4", "--batch-size", "4", "--learning-rate", "0.02"]
NO_STEP = ["--max-steps", "1", "--learning-rate", "1e-30", "--tracker", "none", "--num-workers", "0"]


def train_grey(dataset: Path, output: Path, *flags: str | Path, profile: str | None = None) -> str:
    """What a run of the grey task prints."""
    arguments = ["train.py", "--task", "grey", "--dataset", dataset, "--output-dir", output, *flags]
    result = launch(GREY_TASK, *arguments, profile=profile)
    assert result.returncode == 0, result.stderr
    return result.stdout


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


def last_checkpoint(output: Path) -> Path:
    return max((output / "checkpoints").glob("step-*"))


def without_speed(output: Path) -> list[dict]:
    """The lines of metrics.jsonl, but for what depends on the machine's speed."""
    return [{k: v for k, v in record.items() if not k.startswith("perf/")} for record in records(output)]


def closeness(output: Path) -> list[float]:
    return [record["eval/closeness"] for record in records(output) if "eval/closeness" in record]


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
    train_grey(waves, output, *FLAGS)
    return output


@pytest.fixture(scope="module")
def classes_run(tiny_folder, tmp_path_factory) -> Run:
    """A run of a step that learns classes."""
    output = tmp_path_factory.mktemp("runs") / "classes"
    run = run_train(output, "--dataset", tiny_folder, *SMALL, "--max-steps", "1", "--tracker", "none")
    assert run.exit_code == 0, run.output
    return run


def test_it_learns(grey_run, waves):
    truth = np.concatenate([mask.ravel() for mask in true_masks(waves / "val")])
    of_one_grey = 1 - np.abs(truth - np.median(truth)).mean() / 255
    assert max(closeness(grey_run)) > 0.9 > 0.75 > of_one_grey  # measured 0.947


def test_every_evaluation_is_recorded_under_its_own_scores(grey_run):
    evaluations = [record for record in records(grey_run) if "eval/loss" in record]
    assert [record["step"] for record in evaluations] == [10, 20, 30, 40]
    assert all(
        {key for key in record if "/" in key} == {"eval/loss", "eval/closeness", "eval/grey_error"}
        for record in evaluations
    )


def test_report_and_card_name_its_scores(grey_run):
    best = max(closeness(grey_run))
    report = (grey_run / "report.html").read_text()
    assert "<h2>Grey values</h2>" in report
    assert f"<b>{best:.4f}</b>closeness" in report
    assert "By their own closeness, worst first. Unknown pixels are of another grey." in report
    assert "IoU" not in re.sub(r"base64,[^\"]*", "", report)  # pictures may hold any letters
    card = (grey_run / "model" / "README.md").read_text()
    result = yaml.safe_load(card.split("---")[1])["model-index"][0]["results"][0]
    assert result["task"]["name"] == "Grey regression"
    assert "(H, W) grey values" in card
    assert "logdice" not in card
    assert "semantic" not in card
    assert {metric["type"]: metric["value"] for metric in result["metrics"]}["closeness"] == round(best, 6)
    assert "The grey value of each pixel." in card
    assert f"closeness {best:.4f}" in card


def test_pictures_show_image_truth_and_prediction_as_its_section_has_them(grey_run, waves):
    for file, mask in zip(sorted((grey_run / "predictions").iterdir()), true_masks(waves / "val"), strict=True):
        image, truth, prediction = np.split(read(file), 3, axis=1)
        assert (image == read(waves / "val" / "images" / file.name)[:, :, None]).all()
        assert (truth == mask[:, :, None]).all()
        assert np.abs(prediction - truth).mean() < 25


def test_config_json_names_every_task_but_classes(grey_run, classes_run):
    assert json.loads((grey_run / "model" / "config.json").read_text())["task"] == {"name": "grey"}
    assert "task" not in classes_run.config


def test_a_resumed_run_cannot_be_told_from_one_that_was_never_interrupted(grey_run, waves, tmp_path):
    output = tmp_path / "run"
    shutil.copytree(grey_run, output)
    for step in (30, 40):
        shutil.rmtree(output / "checkpoints" / f"step-{step:08}")
    # a loader's worker process sends targets to the run, which changes nothing
    printed = train_grey(waves, output, *FLAGS, "--resume", "auto", "--tracker", "none", "--num-workers", "1")
    assert "step-00000020, at step 20 of 40" in printed
    assert without_speed(output) == without_speed(grey_run)
    newest = last_checkpoint(grey_run).relative_to(grey_run)
    for file in (newest / "model.safetensors", newest / "optimizer.safetensors", Path("model/model.safetensors")):
        assert (output / file).read_bytes() == (grey_run / file).read_bytes(), file


def test_a_checkpoint_of_another_task_is_refused_in_a_line_that_names_both(
    classes_run, tiny_folder, tmp_path, fails_with
):
    arguments = ["train.py", "--task", "grey", "--dataset", tiny_folder, "--output-dir", tmp_path, *SMALL]
    arguments += ["--max-steps", "1", "--tracker", "none", "--resume", last_checkpoint(classes_run.folder)]
    fails_with(launch(GREY_TASK, *arguments), "the checkpoint's task is classes, this run's is grey", 1)


def test_a_model_of_another_task_gives_all_weights_but_its_head(classes_run, tiny_folder, tmp_path):
    source = classes_run.folder / "model"
    printed = train_grey(tiny_folder, tmp_path, *NO_STEP, "--init-from", source)
    theirs, ours = classes_run.model, load_file(tmp_path / "model" / "model.safetensors")
    heads = {"head.conv.weight", "head.conv.bias"}
    assert f"start: {source}, {len(theirs) - 2} of {len(theirs)} weights copied; random start for head.conv" in printed
    assert printed.count(" (of another task)") == len(heads)
    for name, weight in theirs.items():
        is_statistic = "running" in name or "num_batches" in name  # of the images of the one step
        assert is_statistic or torch.equal(ours[name], weight) == (name not in heads), name


def test_a_head_of_the_same_shape_is_left_out_too_where_it_means_something_else():
    source, model = (UNet(UNetConfig(1, 2, base_channels=4, depth=1, task=task)) for task in (None, {"name": "grey"}))
    before = model.head.conv.weight.clone()
    said = copy_weights(source, model)
    assert "random start for head.conv.weight" in said
    assert "head.conv.bias" in said
    assert torch.equal(model.head.conv.weight, before)
    assert torch.equal(model.stem.conv1.weight, source.stem.conv1.weight)


def test_two_processes_evaluate_as_one(grey_run, waves, tmp_path):
    """5 images, an odd share for either; what one process finds is counted here, from the model that was evaluated."""
    train_grey(waves, tmp_path, *NO_STEP, "--init-from", grey_run / "model", profile="multi_cpu")
    best_scores = json.loads((last_checkpoint(tmp_path) / "state.json").read_text())["run"]["best_scores"]
    model, expected = UNet.from_pretrained(tmp_path / "model"), []
    for index, mask in enumerate(true_masks(waves / "val")):
        image = torch.tensor(read(waves / "val" / "images" / f"{index:02}.png"), dtype=torch.uint8)
        with torch.inference_mode():
            values = (255 * model(image[None, None])[0, 0].sigmoid()).round().numpy()
        expected.append([np.abs(values - mask).sum(), mask.size])
    # float32: another size of a batch may round a value up that is rounded down here
    np.testing.assert_allclose(best_scores["by_image"], expected, rtol=0, atol=2)
    assert best_scores["sums"] == np.sum(best_scores["by_image"], axis=0).tolist()
    assert best_scores["sums"][1] == sum(mask.size for mask in true_masks(waves / "val"))


def test_tiles_predict_what_the_whole_image_does(grey_run, waves, tmp_path):
    model, folder = grey_run / "model", waves / "large"
    printed, of_whole = predict_grey(model, folder, tmp_path / "whole", "--overlay")
    assert "tiles of" not in printed
    printed, of_tiles = predict_grey(model, folder, tmp_path / "tiles", "--tile-size", "64")
    assert "2 images in tiles of 64 x 64 overlapping by 48 (equal to the whole image's result)" in printed
    errors = []
    for index, truth in enumerate(true_masks(folder)):
        masks = [read(tmp_path / way / f"{index:02}.png") for way in ("whole", "tiles")]
        probabilities = [np.load(tmp_path / way / f"{index:02}.npy") for way in ("whole", "tiles")]
        assert probabilities[0].shape == (1, *truth.shape)
        assert (masks[0] == (255 * probabilities[0][0]).round()).all()
        # float32: measured 1.2e-7; a value between two greys may then be rounded the other way
        np.testing.assert_allclose(*probabilities, rtol=0, atol=1e-5)
        np.testing.assert_allclose(*masks, rtol=0, atol=1)
        image, shown = read(folder / "images" / f"{index:02}.png"), read(tmp_path / "whole" / f"{index:02}.overlay.png")
        tinted = (image + masks[0] + 1) // 2
        assert (shown == np.where(masks[0] > 0, tinted, image)[:, :, None]).all()
        errors.append(np.abs(masks[0] - truth))
    error = np.concatenate([image.ravel() for image in errors]).mean()
    assert of_whole["grey_error"] == pytest.approx(error)
    assert sorted(image["grey_error"] for image in of_whole["by_image"]) == pytest.approx(
        sorted(image.mean() for image in errors)
    )
    assert of_tiles["grey_error"] == pytest.approx(error, abs=1e-3)
    assert of_tiles["pixels"] == of_whole["pixels"] == sum(image.size for image in errors)


def test_a_script_that_does_not_know_the_task_refuses_its_model(grey_run, waves, tmp_path, fails_with):
    result = predict(grey_run / "model", [waves / "large"], tmp_path / "out")
    fails_with(result, "the model was trained for the task 'grey', which this version does not know", 1)


def test_an_ensemble_of_two_tasks_is_refused():
    classes, grey = (UNet(UNetConfig(1, 2, base_channels=4, depth=1, task=task)) for task in (None, {"name": "grey"}))
    with pytest.raises(ModelError, match="an ensemble needs models of the same task"):
        Predictor(classes, ensemble=[grey])


def test_boundaries_are_scored_of_classes_alone(grey_run, tiny_folder, tmp_path, fails_with):
    arguments = ["predict.py", "--model", grey_run / "model", "--input", tiny_folder / "val" / "images"]
    arguments += ["--output", tmp_path / "out", "--truth", tiny_folder / "val" / "masks", "--boundary"]
    fails_with(launch(GREY_TASK, *arguments), "--boundary: boundaries are not scored for grey", 1)
