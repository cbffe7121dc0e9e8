"""The records, the bar and the messages of a run that trains.

Modules: train_utils/monitoring/monitor.py.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from accelerate import Accelerator
from support.clocks import NO_CLOCK
from support.in_process import parsed, process_state_kept
from torch import nn

from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.task import Task
from train_utils.monitoring import monitor
from train_utils.monitoring.monitor import Monitor
from train_utils.run_state import RunState
from train_utils.schedule import Schedule
from train_utils.settings.record import RunSettings
from train_utils.step_result import StepResult

NAN = float("nan")
FLAGS = ("--dataset", "shapes", "--plan", "none", "--batch-size", "4", "--max-steps", "20", "--log-every", "2")
CLASSES = Classes(("a", "b"))
POINTS = Landmarks(("a", "b"))
SPEED = {"perf/images_per_second": 12.34, "perf/data_wait_percent": 7.6}


class Written(SimpleNamespace):
    """A log that remembers the records."""

    def __init__(self, folder: Path, *, cache: bool = False, trace_steps: int = 0, precision: str = "no") -> None:
        settings = RunSettings(
            flags={"cache": cache, "trace_steps": trace_steps}, profile={"mixed_precision": precision}, num_workers=2
        )
        super().__init__(settings=settings, output_dir=folder, records=[])

    def scalars(self, step: int, epoch: float, values: dict) -> None:
        self.records.append((step, epoch, values))


def new_monitor(
    folder: Path, state: RunState, *flags: str, task: Task = CLASSES, log: Written | None = None
) -> Monitor:
    """The monitor of a run of twenty steps, three in an epoch."""
    schedule = Schedule.from_args(parsed(*FLAGS, *flags), 10, 20, NO_CLOCK)
    return Monitor(
        Accelerator(cpu=True), nn.Linear(1, 1), schedule, state, log or Written(folder), flops=3e12, task=task
    )


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    with process_state_kept():
        yield


@pytest.fixture
def logged(tmp_path, monkeypatch) -> list[tuple]:
    """The records of a run that logs after its second step and after its third, whose loss is no number."""
    state = RunState(skipped=3, window={"total": 3.0, "steps": 1})
    run = new_monitor(tmp_path, state)
    monkeypatch.setattr(run.meter, "summary", lambda: SPEED)
    run.add([StepResult(step, loss, 10.0 * step, False) for step, loss in ((1, 1.0), (2, 2.0))])
    state.step = 2
    run.log_training(0.25)
    state.step = 3
    run.add([StepResult(3, NAN, NAN, False)])
    run.log_training(0.125)
    run.close()
    return run.run_log.records


def test_record_of_training_holds_epoch_mean_loss_rate_norm_and_speed(logged):
    (step, epoch, values), (_, _, without_a_step) = logged
    assert step == 2
    assert epoch == 2 / 3
    numbers = {"train/loss": 2.0, "train/lr": 0.25, "train/grad_norm": 20.0, "train/skipped_steps": 3}
    assert values == numbers | SPEED
    assert without_a_step["train/loss"] is None
    assert without_a_step["train/lr"] == 0.125


def test_images_that_could_not_be_read_are_named_at_the_end(tmp_path, capsys, monkeypatch):
    run = new_monitor(tmp_path, RunState(step=5))
    batches = [{"images": 1, "problems": ["b.png: cut"]}, {"images": 2, "problems": []}]
    run.data_ready(batches)
    run.data_ready([{"problems": ["b.png: cut"]}, {"problems": ["d.png: cut"]}])
    monkeypatch.setattr(monitor, "gather_object", lambda own: [*own, "c.png: of another process", "a.png: empty", *own])
    run.close()
    line = capsys.readouterr().out
    assert line.startswith("4 bad samples")
    assert line.endswith(": a.png: empty; b.png: cut; c.png: of another process; d.png: cut\n")


@pytest.mark.parametrize(("task", "score"), [(POINTS, "closeness")], ids=["points"])
def test_run_out_of_patience_says_at_which_step_it_stops(tmp_path, capsys, task, score):
    state = RunState(step=9, evaluations_since_best=2)
    new_monitor(tmp_path, state, "--patience", "2", task=task).close()
    assert capsys.readouterr().out == f"no better {score} in 2 evaluations, stopping at step 9\n"


@pytest.mark.parametrize(("step", "since_best"), [(9, 1), (20, 2)], ids=["patient", "at its last step"])
def test_run_that_is_patient_or_ends_anyway_says_nothing(tmp_path, capsys, step, since_best):
    new_monitor(tmp_path, RunState(step=step, evaluations_since_best=since_best), "--patience", "2").close()
    assert capsys.readouterr().out == ""


def test_bar_in_a_file_has_no_line_for_a_step_but_the_first(tmp_path, capsys):
    run = new_monitor(tmp_path, RunState(step=2))
    begun = capsys.readouterr().err
    for _ in range(3):
        run.show()
    assert begun.count("\n") == 1
    assert capsys.readouterr().err == ""
    run.close()


@pytest.mark.parametrize(("task", "score"), [(CLASSES, "mean IoU")], ids=["classes"])
def test_bar_shows_the_best_score_from_zero_on(tmp_path, task, score):
    state = RunState(step=2)
    run = new_monitor(tmp_path, state, task=task)
    run.add([StepResult(2, 0.5, 1.0, False)])
    run.log_training(0.1)
    run.show()
    assert run.bar.postfix == "epoch 0.7, loss 0.500"
    state.best = 0.0
    run.show()
    assert run.bar.postfix == f"epoch 0.7, loss 0.500, best {score} 0.000"
    run.close()


def test_bottleneck_is_reported_once(tmp_path, capsys, monkeypatch):
    state = RunState()
    run = new_monitor(tmp_path, state)
    monkeypatch.setattr(run, "bottleneck", lambda: "slow disk")
    for step in (1, 2):
        state.step = step
        run.add([StepResult(step, 1.0, 1.0, False)])
        run.log_training(0.1)
    run.close()
    assert capsys.readouterr().out == "slow disk\n"
