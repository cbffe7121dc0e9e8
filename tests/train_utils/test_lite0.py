"""Runs with the built-in encoder that the plan chooses: recorded, resumed, repeated, launched on several processes."""

import json
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import PROGRAMS, launch, write_splits
from in_process import Run, run_train

import train
from runtime.errors import CheckpointError
from train_utils.settings import lite0

FLAGS = ["--scale", "0.5", "--batch-size", "2", "--num-workers", "0", "--tracker", "none", "--log-every", "1"]
FLAGS += ["--eval-every", "4", "--checkpoint-every", "2", "--schedule", "constant", "--warmup-steps", "0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four photographs to train on, and two to validate."""
    folder = tmp_path_factory.mktemp("photographs")
    return write_splits(folder, 4, 2, size=(128, 128))


def run(output: Path, data: Path, *flags: str | Path) -> Run:
    """A run whose network the plan chooses, without report and pictures."""
    with mock.patch.object(train.Publisher, "write_results"):
        return run_train(output, "--dataset", data, *FLAGS, *flags)


STEPS = ("--max-steps", "2", "--checkpoint-every", "1", "--ema-decay", "0.9")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two steps, and a checkpoint of each."""
    return run(tmp_path_factory.mktemp("runs") / "whole", data, *STEPS)


def test_a_resumed_run_is_the_run_that_was_never_stopped_and_needs_no_package(data, whole, tmp_path, monkeypatch):
    assert " --encoder lite0 --encoder-weights pretrained --no-freeze-encoder " in whole.output
    assert "model: U-Net with encoder EfficientNet-Lite0 (apache-2.0)" in whole.output
    monkeypatch.setattr(lite0, "find_spec", lambda _: None)
    resume = ("--resume", whole.folder / "checkpoints" / "step-00000001")
    resumed = run(tmp_path / "resumed", data, *STEPS, *resume)
    assert "resumed from" in resumed.output
    for kind in ("model", "optimizer", "average"):
        expected, resumed_tensors = whole.tensors(2, kind), resumed.tensors(2, kind)
        assert all(torch.equal(resumed_tensors[name], value) for name, value in expected.items())
    with pytest.raises(CheckpointError, match="the checkpoint's encoder is lite0, this run's is None"):
        run(tmp_path / "other", data, *STEPS, *resume, "--encoder", "none")


@pytest.mark.slow
def test_a_finished_run_needs_no_package(data, tmp_path, monkeypatch):
    run(tmp_path, data, *STEPS)
    monkeypatch.setattr(lite0, "find_spec", lambda _: None)
    assert "the run has finished" in run(tmp_path, data, *STEPS, "--resume", "auto").output


def test_a_run_is_recorded_repeated_and_its_card_has_the_license(data, tmp_path):
    first = run(tmp_path / "first", data, "--freeze-encoder", "--max-steps", "1")
    card = (tmp_path / "first" / "model" / "README.md").read_text()
    assert "EfficientNet-Lite0" in card
    assert "Apache\nLicense 2.0" in card
    assert "requirements-encoders" not in card
    assert "| encoder weights | pretrained |" in card
    with mock.patch.object(train.Publisher, "write_results"):
        repeated = run_train(tmp_path / "second", "--like", tmp_path / "first")
    assert "without a change" in repeated.output
    names = ("encoder", "encoder_weights", "freeze_encoder")
    assert [repeated.settings["flags"][name] for name in names] == ["lite0", "pretrained", True]
    assert all(torch.equal(repeated.model[name], weight) for name, weight in first.model.items())
    before = first.weights(0)
    assert all(torch.equal(first.model[name], before[name]) for name in before if name.startswith("encoder."))


@pytest.mark.slow
def test_two_processes_make_the_steps_of_one(data, tmp_path):
    flags = ["--plan", "none", "--encoder", "lite0", "--base-channels", "2", "--max-steps", "3", "--batch-size", "4"]
    flags += ["--scale", "0.5", "--num-workers", "0", "--tracker", "none", "--log-every", "1"]
    arguments = ["train.py", "--dataset", data, "--output-dir", tmp_path / "run-2", *flags]
    result = launch(PROGRAMS / "in_float64.py", *arguments, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    torch.set_default_dtype(torch.float64)
    try:
        one = run_train(tmp_path / "run-1", "--dataset", data, *flags)
    finally:
        torch.set_default_dtype(torch.float32)
    two = [json.loads(line) for line in (tmp_path / "run-2" / "metrics.jsonl").read_text().splitlines()]
    for records in zip(one.records, two, strict=True):
        for key in ("train/loss", "train/grad_norm", "eval/loss"):
            values = [record.get(key) for record in records]
            assert values[1] == (values[0] and pytest.approx(values[0], abs=1e-9))
