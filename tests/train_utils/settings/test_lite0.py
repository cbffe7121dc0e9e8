"""Runs with the built-in encoder that the plan chooses: recorded, resumed, repeated, launched on several processes."""

from pathlib import Path
from unittest import mock

import pytest
from support.folders import write_splits
from support.in_process import Run, run_train
from support.run_equality import different_tensors

import train
from runtime.errors import CheckpointError
from train_utils.settings import encoder

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


@pytest.fixture
def no_package(whole, monkeypatch) -> None:
    """The package of the weights is not installed, once a run has begun with them."""
    monkeypatch.setattr(encoder, "find_spec", lambda _: None)


def test_plan_chooses_the_built_in_encoder(whole):
    assert " --encoder lite0 --encoder-weights pretrained --no-freeze-encoder " in whole.output
    assert "model: U-Net with encoder EfficientNet-Lite0 (apache-2.0)" in whole.output


def test_resumed_run_without_the_package_is_the_run_that_was_never_stopped(data, whole, no_package, tmp_path):
    resumed = run(tmp_path, data, *STEPS, "--resume", whole.folder / "checkpoints" / "step-00000001")
    assert "resumed from" in resumed.output
    for kind in ("model", "optimizer", "average"):
        assert different_tensors(resumed.tensors(2, kind), whole.tensors(2, kind)) == [], kind


def test_run_without_an_encoder_is_no_continuation(data, whole, no_package, tmp_path):
    resume = ("--resume", whole.folder / "checkpoints" / "step-00000001")
    with pytest.raises(CheckpointError, match="the checkpoint's encoder is lite0, this run's is None"):
        run(tmp_path, data, *STEPS, *resume, "--encoder", "none")
