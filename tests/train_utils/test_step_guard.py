"""A step whose loss or gradient is not finite is not made, and leaves everything as it was."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from support.clocks import NO_CLOCK
from support.folders import write_splits
from support.in_process import Run, process_state_kept, run_train
from support.run_equality import different_tensors
from torch import nn

from data_utils.loading.batch_sampler import BatchSplit, TrainingSampler
from runtime.errors import TrainingError
from tasks.step_loss import StepLoss
from train_utils.optim import build_optimizer
from train_utils.run_state import RunState, StepResult
from train_utils.step_guard import StepGuard

FLAGS = ["--base-channels", "2", "--depth", "1", "--num-workers", "0", "--batch-size", "4", "--tracker", "none"]
FLAGS += ["--plan", "none"]
FLAGS += ["--optimizer", "sgd", "--log-every", "1", "--checkpoint-every", "1", "--keep-checkpoints", "9"]
STEPS = SimpleNamespace(clock=NO_CLOCK)  # the schedule of a run whose steps are counted
NAN, INF = float("nan"), float("inf")


class Opened:
    """Records that remember which of them were asked for their names."""

    def __init__(self) -> None:
        self.indices: list[int] = []

    def name(self, index: int) -> str:
        self.indices.append(index)
        return f"image-{index}.png"


class Stepper:
    """A small network, and steps whose loss and gradient norm are said to be what they are not."""

    def __init__(self, optimizer: str, kind: str = "NO") -> None:
        self.network = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
        self.accelerator = Accelerator(cpu=True)
        self.optimizer = self.accelerator.prepare(build_optimizer(self.network, optimizer, 0.1, 0.1, kind))
        self.state = RunState()
        self.records = Opened()
        self.guard = StepGuard(self.accelerator, self.network, self.optimizer, STEPS, self.state, self.records)

    def step(self, loss: float, norm: float, stop_requests: int = 0) -> None:
        torch.manual_seed(self.state.step)
        self.guard.begin_step()
        self.network(torch.rand(2, 3, 4, 4)).square().mean().backward()
        if not torch.isfinite(torch.tensor([loss, norm])).all():
            self.network(torch.full((2, 3, 4, 4), NAN))
            for parameter in self.network.parameters():
                parameter.grad.fill_(NAN)
        self.guard.check(torch.tensor(loss), torch.tensor(norm), torch.tensor([stop_requests, 0.0, 0.0, 1.0]))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state.step += 1
        self.guard.end_step([self.state.step])

    def everything(self) -> list[torch.Tensor]:
        state = [value for values in self.optimizer.optimizer.state.values() for value in values.values()]
        return [value.clone() for value in [*self.network.state_dict().values(), *state]]


@pytest.fixture
def stepper():
    with process_state_kept():
        yield Stepper


@pytest.mark.parametrize(("loss", "norm"), [(NAN, NAN), (INF, 1.0), (1.0, INF), (1.0, NAN)])
@pytest.mark.parametrize(("optimizer", "kind"), [("adamw", "NO"), ("sgd", "NO"), ("muon", "NO"), ("sgd", "FSDP")])
def test_a_refused_step_changes_nothing(stepper, optimizer, kind, loss, norm):
    run = stepper(optimizer, kind)
    run.step(1.0, 1.0)
    before = run.everything()
    run.step(loss, norm)
    after = run.everything()
    assert all(map(torch.equal, after, before))
    assert len(after) > 7
    run.step(1.0, 1.0)
    assert not all(map(torch.equal, run.everything(), before))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_a_run_whose_first_step_is_refused_goes_on_as_if_it_had_not_been(stepper, optimizer):
    def weights(*norms: float) -> list[torch.Tensor]:
        torch.manual_seed(1)
        run = stepper(optimizer)
        for norm in norms:
            run.step(1.0, norm)
            run.state.step = 0  # the same input in every step
            run.guard.settle(everything=True)
        return run.everything()

    assert all(map(torch.equal, weights(NAN, 1.0, 1.0), weights(1.0, 1.0)))


def test_a_result_is_read_a_step_later(stepper, capsys):
    run = stepper("sgd")
    run.step(1.0, 2.0)
    assert run.guard.settle(everything=False) == []
    run.step(3.0, NAN)
    assert run.guard.settle(everything=False) == [StepResult(1, 1.0, 2.0, False)]
    assert run.state.skipped == 0
    run.step(5.0, 6.0)
    refused, last = run.guard.settle(everything=True)
    assert (refused.step, refused.is_made) == (2, False)
    assert last == StepResult(3, 5.0, 6.0, False)
    assert run.guard.settle(everything=True) == []
    assert run.state.skipped == 1
    assert "step 2: loss or gradient not finite, step skipped; its images: image-2.png" in capsys.readouterr().out


@pytest.mark.parametrize("processes", [1, 2])
def test_a_request_to_stop_brings_all_results(stepper, processes):
    run = stepper("sgd")
    run.step(1.0, 1.0, stop_requests=processes)
    assert run.guard.settle(everything=False) == []
    assert not run.guard.stopping
    run.step(1.0, 1.0)
    assert [result.step for result in run.guard.settle(everything=False)] == [1, 2]
    assert run.guard.stopping


def make_steps(run: Stepper, losses: list[float]) -> None:
    """Make a step of each loss, and read its result."""
    for loss in losses:
        run.step(loss, 1.0)
        run.guard.settle(everything=True)


def test_five_refused_steps_in_a_row_end_the_run(stepper):
    run = stepper("sgd")
    make_steps(run, [*[NAN] * 4, 1.0, *[NAN] * 4])
    assert run.state.skipped == 8
    with pytest.raises(TrainingError, match="5 steps in a row without a finite gradient"):
        make_steps(run, [NAN])


def poisoned(monkeypatch, *calls: int) -> None:
    """Have the loss be NaN in these calls, from 1: a memory trial on a CPU makes none."""
    count = 0
    call = StepLoss.__call__

    def call_or_nan(self, logits, targets, counts):
        nonlocal count
        count += 1
        return call(self, logits, targets, counts) * (NAN if count in calls else 1)

    monkeypatch.setattr(StepLoss, "__call__", call_or_nan)


@pytest.fixture
def data(tmp_path) -> Path:
    """8 training and 2 validation images, beside which a test may write."""
    return write_splits(tmp_path, 8, 2, size=(16, 24))


@pytest.fixture(scope="module")
def shared_data(tmp_path_factory) -> Path:
    """The same images, for runs that several tests look at."""
    return write_splits(tmp_path_factory.mktemp("data"), 8, 2, size=(16, 24))


@pytest.fixture(scope="module")
def skipping(shared_data, tmp_path_factory) -> Run:
    """A run of five steps, of which the third has no finite loss."""
    with pytest.MonkeyPatch.context() as patch:
        poisoned(patch, 3)
        flags = ["--max-steps", "5", "--eval-every", "5"]
        run = run_train(tmp_path_factory.mktemp("skipping") / "run", "--dataset", shared_data, *FLAGS, *flags)
    assert run.exit_code == 0, run.output
    return run


def test_a_skipped_step_is_reported_with_its_images_and_changes_no_weight(skipping):
    batches = [*TrainingSampler(np.full((8, 2), 16), BatchSplit(4, 1, 4, 1), seed=0, steps=range(5))]
    names = ", ".join(f"cell_{slot.index:02}.png" for slot in batches[2])
    assert f"step 3: loss or gradient not finite, step skipped; its images: {names}\n" in skipping.output
    assert skipping.values("train/skipped_steps") == [0, 0, 1, 1, 1]
    assert skipping.values("train/loss")[2] is None
    assert None not in skipping.values("train/loss")[3:]
    assert different_tensors(skipping.weights(2), skipping.weights(3)) == []
    assert different_tensors(skipping.weights(3), skipping.weights(4)) != []


AVERAGED = [*FLAGS, "--ema-decay", "0.5", "--max-steps", "3", "--eval-every", "3", "--log-every", "3"]


@pytest.fixture(scope="module")
def skipping_last(shared_data, tmp_path_factory) -> Run:
    """A run of three steps, of which the last has no finite loss, with an average of weights and one record."""
    with pytest.MonkeyPatch.context() as patch:
        poisoned(patch, 3)
        return run_train(tmp_path_factory.mktemp("skipping") / "run", "--dataset", shared_data, *AVERAGED)


def test_the_average_of_weights_leaves_a_skipped_step_out(skipping_last):
    assert different_tensors(skipping_last.tensors(2, "average"), skipping_last.tensors(3, "average")) == []


def test_the_mean_loss_leaves_a_skipped_step_out(skipping_last, shared_data, tmp_path):
    good = run_train(tmp_path / "good", "--dataset", shared_data, *AVERAGED, "--log-every", "1")
    mean = sum(good.values("train/loss")[:2]) / 2
    assert skipping_last.values("train/loss") == [pytest.approx(mean, rel=1e-6)]


def test_a_resumed_run_knows_of_the_steps_that_were_skipped(data, monkeypatch):
    poisoned(monkeypatch, 2)
    flags = ["--dataset", data, *FLAGS, "--eval-every", "9"]
    run_train(data / "run", *flags, "--max-steps", "3")
    run = run_train(data / "run", *flags, "--max-steps", "4", "--resume", "auto")
    assert run.values("train/skipped_steps") == [0, 1, 1, 1]
