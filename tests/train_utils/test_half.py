"""fp16 with a GradScaler, on the CPU: a scaler that searches is told from a step that is bad.

Modules: train_utils/step_guard.py.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from support.folders import write_splits
from support.in_process import Run, run_train

import train
from unet import UNet

FLAGS = ["--base-channels", "4", "--depth", "1", "--num-workers", "0", "--batch-size", "4", "--tracker", "none"]
FLAGS += ["--plan", "none"]
FLAGS += ["--log-every", "1", "--checkpoint-every", "1", "--eval-every", "9", "--keep-checkpoints", "99"]
FLAGS += ["--ema-decay", "0.9", "--learning-rate", "0.01"]
SCALE = 2.0**10


@pytest.fixture(autouse=True)
def fp16(monkeypatch):
    """accelerate trains in fp16 on GPUs only; what it sets there is set here."""
    start = train.Accelerator.__init__

    def start_in_fp16(self, *arguments, **options):
        start(self, *arguments, **options)
        self.state._shared_state["_mixed_precision"] = "fp16"
        self.native_amp = True
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=4)

    monkeypatch.setattr(train.Accelerator, "__init__", start_in_fp16)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("half")
    return write_splits(folder, 8, 2, size=(16, 24))


class _InfiniteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float("inf")


def spoil(monkeypatch, steps: range, how: str) -> None:
    """Have the forward pass be NaN, or its gradient overflow, in these steps, from 1."""
    count = 0
    way_down = UNet._way_down

    def spoilt(self, images):
        nonlocal count
        count += self.training and images.device.type != "meta"
        if not self.training or count not in steps:
            return way_down(self, images)
        if how == "nan":
            return way_down(self, images * float("nan"))
        return [_InfiniteGradient.apply(x) for x in way_down(self, images)]

    monkeypatch.setattr(UNet, "_way_down", spoilt)


def scales(run: Run) -> list[float]:
    """The scale in each checkpoint, from step 0; None before the scaler's first step."""
    folders = sorted((run.folder / "checkpoints").glob("step-*"))
    return [json.loads((folder / "state.json").read_text())["scaler"]["scale"] for folder in folders]


def unchanged(run: Run, first: int, second: int) -> bool:
    """Whether weights, running statistics and averages of two checkpoints are equal."""
    pairs = [[run.tensors(step, kind) for step in (first, second)] for kind in ("model", "average")]
    return all(torch.equal(before[name], after[name]) for before, after in pairs for name in before)


def test_an_overflow_that_lowers_the_scale_is_no_bad_step(data, tmp_path, monkeypatch):
    spoil(monkeypatch, range(3, 4), "overflow")
    run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--max-steps", "5")
    assert run.exit_code == 0
    assert "skipped" not in run.output
    assert run.values("train/skipped_steps") == [0, 0, 1, 1, 1]
    assert scales(run) == [SCALE, SCALE, SCALE, SCALE / 2, SCALE / 2, SCALE / 2]
    assert unchanged(run, 2, 3)
    assert not unchanged(run, 3, 4)
    assert [value is None for value in run.values("train/loss")] == [False, False, True, False, False]


def test_a_forward_pass_that_is_not_finite_is_a_bad_step(data, tmp_path, monkeypatch):
    spoil(monkeypatch, range(3, 4), "nan")
    run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--max-steps", "5")
    assert run.exit_code == 0
    assert "step 3: loss or gradient not finite, step skipped" in run.output
    assert run.values("train/skipped_steps") == [0, 0, 1, 1, 1]
    assert scales(run)[3:] == [SCALE / 2] * 3  # the scaler takes notice
    assert unchanged(run, 2, 3)
    assert not unchanged(run, 3, 4)
    assert all(value.isfinite().all() for value in run.model.values())


def test_five_overflows_in_a_row_do_not_end_the_run(data, tmp_path, monkeypatch):
    spoil(monkeypatch, range(2, 7), "overflow")
    run = run_train(tmp_path / "run", "--dataset", data, *FLAGS, "--max-steps", "8")
    assert run.exit_code == 0
    assert scales(run)[6] == SCALE / 2**5
    assert run.values("train/skipped_steps") == [0, 1, 2, 3, 4, 5, 5, 5]


def test_a_resumed_run_goes_on_with_the_scale_it_had(data, tmp_path, monkeypatch):
    with monkeypatch.context() as spoilt:
        spoil(spoilt, range(2, 3), "overflow")
        whole = run_train(tmp_path / "whole", "--dataset", data, *FLAGS, "--max-steps", "8")
    shutil.copytree(whole.folder, tmp_path / "again")
    for step in range(5, 9):
        shutil.rmtree(tmp_path / "again" / "checkpoints" / f"step-{step:08}")
    again = run_train(tmp_path / "again", "--dataset", data, *FLAGS, "--max-steps", "8", "--resume", "auto")
    assert scales(again) == scales(whole)
    assert scales(whole)[-1] == SCALE
    assert all(torch.equal(again.weights(8)[name], value) for name, value in whole.weights(8).items())
