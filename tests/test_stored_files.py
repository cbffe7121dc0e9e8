"""Files that an earlier version has written still mean the same: models, an ONNX file, a run and its checkpoint.

tests/data holds them. Each was written by commit 25bbcdd with the flags in run.json; `predicted` holds its masks and
probabilities.
"""

import json
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from support.in_process import Run, parsed, run_train
from support.launches import ROOT

from data_utils.class_map import ClassMap
from inference import Predictor

STORED = ROOT / "tests" / "data"
CLOSE = {"rtol": 0, "atol": 1e-4}  # another processor rounds in another way


@pytest.mark.parametrize("model", ["images", "encoder", "images.onnx"])
def test_a_stored_model_predicts_the_stored_masks(model):
    predictor = Predictor.from_pretrained(STORED / "models" / model)
    preprocess = predictor.config.preprocess
    class_map = ClassMap.from_preprocess(preprocess, predictor.config.num_classes)
    expected = STORED / "predicted" / model.removesuffix(".onnx")
    for image in sorted((STORED / "images" / "val" / "images").iterdir()):
        prediction = predictor(image)
        np.testing.assert_allclose(prediction.probabilities, np.load(expected / f"{image.stem}.npy"), **CLOSE)
        mask = np.asarray(Image.open(expected / image.name))
        assert (class_map.decode(prediction.mask) == mask).mean() > 0.999


def test_a_stored_model_of_volumes_predicts_the_stored_mask():
    prediction = Predictor.from_pretrained(STORED / "models" / "volumes")(STORED / "volumes" / "scan_00.nii.gz")
    probabilities = nibabel.load(STORED / "predicted" / "volumes" / "scan_00.probabilities.nii.gz").get_fdata()
    np.testing.assert_allclose(prediction.probabilities.T, np.moveaxis(probabilities, 3, -1), **CLOSE)


@pytest.fixture
def stored_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the stored run, which knows its data set as data/images."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(STORED / "images", "data/images")
    return Path(shutil.copytree(STORED / "run", "old/run"))


@pytest.fixture(scope="module")
def resumed_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The stored run, which has gone on from its checkpoint."""
    folder = tmp_path_factory.mktemp("resumed")
    shutil.copytree(STORED / "images", folder / "data/images")
    output = shutil.copytree(STORED / "run", folder / "old/run")
    flags = ["--dataset", "data/images", "--plan", "none", "--base-channels", "2", "--depth", "3", "--norm", "group"]
    flags += ["--num-workers", "0", "--batch-size", "2", "--max-steps", "4", "--eval-every", "2", "--tracker", "none"]
    flags += ["--checkpoint-every", "2", "--ema-decay", "0.9", "--learning-rate", "0.01", "--log-every", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run = run_train(Path(output), *flags, "--classes", "0=ground,100=bright,200=dark", "--resume", "auto")
    assert run.exit_code == 0, run.output
    return run


def test_a_stored_run_goes_on_from_its_checkpoint_to_the_stored_weights(resumed_run):
    assert resumed_run.checkpoints() == [2, 4]
    assert resumed_run.settings["identity"]["task"] == "classes"
    assert "task was" not in resumed_run.output
    for name, expected in load_file(STORED / "run" / "weights_at_step_4.safetensors").items():
        torch.testing.assert_close(resumed_run.weights(4)[name], expected, **CLOSE)


def test_a_stored_run_goes_on_with_the_stored_losses(resumed_run):
    lines = (STORED / "run" / "metrics.jsonl").read_text().splitlines()
    stored = [json.loads(line) for line in lines]
    assert resumed_run.steps("train/loss") == [1, 2, 3, 4]
    keys = ["train/loss", "eval/loss", "eval/mean_iou", "eval/iou/dark"]
    for key in keys:
        assert resumed_run.values(key) == pytest.approx([line[key] for line in stored if key in line], abs=1e-4)


def test_the_best_evaluation_of_a_stored_checkpoint_makes_the_report(stored_run):
    shutil.copytree(STORED / "models" / "images", stored_run / "model")
    state = json.loads((stored_run / "checkpoints" / "step-00000002" / "state.json").read_text())
    assert state["run"]["best_step"] == 2
    assert state["run"]["best_matrix"]
    run = run_train(stored_run, "--like", stored_run / "run.json", "--resume", "auto", "--max-steps", "2")
    assert run.exit_code == 0, run.output
    report = (stored_run / "report.html").read_text()
    assert f"{state['run']['best']:.4f}" in report
    assert "bright" in report


def test_a_stored_record_of_a_run_is_repeated(stored_run):
    recorded = json.loads((stored_run / "run.json").read_text())["flags"]
    args = parsed("--like", stored_run / "run.json", "--output-dir", "again")
    names = ["dataset", "classes", "base_channels", "depth", "norm", "max_steps", "learning_rate", "ema_decay"]
    assert {name: getattr(args, name) for name in names} == {name: recorded[name] for name in names}
