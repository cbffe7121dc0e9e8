"""A step whose gradient is not finite is not made, and leaves everything as it was."""

import pytest
import torch
from accelerate import Accelerator
from conftest import write_folder
from in_process import process_state_kept, run_train
from torch import nn

import train
from runtime.errors import TrainingError
from train_utils.checkpoints.run_state import RunState
from train_utils.nan_guard import MAX_IN_A_ROW, StepGuard

FLAGS = ["--base-channels", "2", "--depth", "1", "--num-workers", "0", "--batch-size", "4", "--tracker", "none"]
FLAGS += ["--optimizer", "sgd", "--log-every", "1", "--checkpoint-every", "1", "--keep-checkpoints", "9"]


@pytest.fixture
def guard():
    network = nn.BatchNorm2d(3)
    with process_state_kept():
        yield StepGuard(Accelerator(cpu=True), network, RunState(step=7))


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_running_statistics_are_put_back(guard, norm):
    guard.begin_step()
    before = [buffer.clone() for buffer in guard.network.buffers()]
    guard.network(torch.full((2, 3, 4, 4), float("nan")))
    assert not guard.accepts(torch.tensor(norm))
    assert all(torch.equal(now, then) for now, then in zip(guard.network.buffers(), before, strict=True))


def test_a_finite_step_keeps_its_statistics(guard):
    guard.begin_step()
    guard.network(torch.rand(2, 3, 4, 4))
    assert guard.accepts(torch.tensor(1e30))
    assert guard.network.num_batches_tracked == 1


def test_several_in_a_row_end_the_run_and_a_good_one_between_starts_the_count_again(guard, capsys):
    for _ in range(MAX_IN_A_ROW - 1):
        guard.refuse(["a.png"])
    guard.accepts(torch.tensor(1.0))
    for _ in range(MAX_IN_A_ROW - 1):
        guard.refuse(["a.png", "b.png"])
    assert "step 7: loss or gradient not finite, step skipped; its images: a.png, b.png" in capsys.readouterr().out
    with pytest.raises(TrainingError, match="5 steps in a row without a finite gradient"):
        guard.refuse(["a.png"])
    assert guard.state.skipped == 2 * MAX_IN_A_ROW - 1


def test_a_run_skips_the_step_and_goes_on(tmp_path, monkeypatch):
    write_folder(tmp_path / "train", 8, seed=0, size=(16, 24))
    write_folder(tmp_path / "val", 2, seed=1, size=(16, 24))
    calls = []
    forward = train.SegmentationLoss.forward

    def poisoned(self, logits, masks, counts):
        calls.append(None)
        return forward(self, logits, masks, counts) * (float("nan") if len(calls) == 3 else 1)

    monkeypatch.setattr(train.SegmentationLoss, "forward", poisoned)
    flags = [*FLAGS, "--max-steps", "5", "--eval-every", "5"]
    run = run_train(tmp_path / "run", "--dataset", tmp_path, *flags)
    # the preflight on a CPU makes no forward pass of the loss: the third call is the third step
    assert run.exit_code == 0 and "step 3: loss or gradient not finite, step skipped" in run.output
    assert run.values("train/skipped_steps") == [0, 0, 1, 1, 1]
    assert run.values("train/loss")[2] is None and None not in run.values("train/loss")[3:]
    before, after, later = (run.weights(step) for step in (2, 3, 4))
    assert all(torch.equal(before[name], after[name]) for name in before)  # weights and running statistics
    assert any(not torch.equal(after[name], later[name]) for name in after)
