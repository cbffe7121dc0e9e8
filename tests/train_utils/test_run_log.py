"""What is logged of a run that trains: records, the tracker, the bar, the trace and messages.

Modules: train_utils/run_log.py, train_utils/meter.py, train_utils/tracker.py.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from accelerate import Accelerator
from support.clocks import NO_CLOCK
from support.in_process import parsed, process_state_kept
from support.launches import TINY, launch
from support.run_files import records
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from runtime.errors import SettingsError, WriteError
from tasks.classes.loss import Classes
from train_utils import meter as meter_module
from train_utils import run_log
from train_utils.meter import Meter
from train_utils.run_log import RunLog
from train_utils.run_state import LossWindow, RunState, StepResult
from train_utils.schedule import Clock, Schedule
from train_utils.settings.record import RunSettings
from train_utils.tracker import Tracker, available_tracker, takes_pictures

NAN = float("nan")
FLAGS = ("--dataset", "shapes", "--plan", "none", "--batch-size", "4", "--max-steps", "20", "--log-every", "2")
RECORDED = {"learning_rate": 0.01, "crop_size": [32, 32], "cache": False, "depth": None}


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    with process_state_kept():
        yield


def new_log(
    folder: Path, state: RunState, *flags: str, tracker: str = "none", trace_steps: int = 0, clock: Clock = NO_CLOCK
) -> RunLog:
    """The log of a run of twenty steps, three in an epoch, which logs every two."""
    schedule = Schedule(parsed(*FLAGS, *flags), steps_per_epoch=3, total_steps=20, clock=clock)
    if folder.exists():
        (folder / "metrics.jsonl").touch()
    log_with = None if tracker == "none" else tracker
    accelerator = Accelerator(cpu=True, log_with=log_with, project_dir=str(folder))
    settings = RunSettings(flags=RECORDED | {"tracker": tracker, "trace_steps": trace_steps}, total_steps=40)
    checkpoints = SimpleNamespace(output_dir=folder, settings=settings)
    return RunLog(accelerator, None, checkpoints, schedule, state, None, Classes(("a", "b")))


def test_record_of_training_holds_epoch_mean_loss_rate_and_norm(tmp_path):
    state = RunState(step=2, skipped=3, window=LossWindow(3.0, 1))
    log = new_log(tmp_path, state)
    log.step([StepResult(1, 1.0, 10.0, False), StepResult(2, 2.0, 20.0, False)], 0.25)
    state.step = 3
    log.step([StepResult(3, NAN, NAN, False)], 0.125)
    state.step = 4
    log.step([StepResult(4, NAN, NAN, False)], 0.125)
    first, second = records(tmp_path)
    numbers = {"train/loss": 2.0, "train/lr": 0.25, "train/grad_norm": 20.0, "train/skipped_steps": 3}
    assert first == {"step": 2, "epoch": 0.6667} | numbers
    assert second["train/loss"] is None
    assert second["train/lr"] == 0.125


def test_the_bar_of_a_timed_run_estimates_the_end_from_the_time_behind_its_beginning(tmp_path):
    log = new_log(tmp_path, RunState(), clock=Clock(minutes=30, minutes_used=2))
    assert log.bar.n == log.bar.initial >= 120


def test_images_that_could_not_be_read_are_named_at_the_end(tmp_path, capsys, monkeypatch):
    log = new_log(tmp_path, RunState(step=5))
    log.data_ready([{"problems": ["b.png: cut"]}, {"problems": []}])
    log.data_ready([{"problems": ["b.png: cut"]}, {"problems": ["d.png: cut"]}])
    monkeypatch.setattr(run_log, "gather_object", lambda own: [*own, "c.png: of another process", *own])
    log.close()
    line = capsys.readouterr().out
    assert line.startswith("3 bad samples")
    assert line.endswith(": b.png: cut; c.png: of another process; d.png: cut\n")


def test_a_folder_that_takes_no_files_is_reported_in_one_line(tmp_path):
    with pytest.raises(WriteError, match=r"cannot be written to: .*No such file or directory"):
        new_log(tmp_path / "gone", RunState())


def log_run(folder: Path, steps: range, start: int = 0) -> dict:
    """Log a run to TensorBoard; returns its settings."""
    log = new_log(folder, RunState(step=start), tracker="tensorboard")
    for step in steps:
        log.tracker.scalars(step, {"eval/mean_iou": step / 10, "eval/loss": None})
    log.tracker.pictures(steps[-1], {"pictures/a\x1bb": np.zeros((2, 4, 3), np.uint8)})
    log.tracker.finish()
    return asdict(log.settings)


def test_tensorboard_has_one_run_with_its_settings_as_a_text(tmp_path, monkeypatch):
    # files of one second are sorted by this number, as text: a run of its own counts from 0
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    settings = log_run(tmp_path, range(1, 6))
    log_run(tmp_path, range(4, 8), start=3)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "tensorboard" in path.parts]
    assert {path.parent for path in files} == {tmp_path / "tensorboard"}
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("eval/mean_iou")] == [1, 2, 3, 4, 5, 6, 7]
    picture = events.Images("pictures/a\\x1bb")[0]
    assert (picture.height, picture.width) == (2, 4)
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert json.loads(text.strip("`\n")) == settings


def test_a_tracker_that_is_not_installed_is_left_out_and_an_unknown_one_refused(capsys, monkeypatch):
    monkeypatch.setattr("train_utils.tracker.get_available_trackers", lambda: [])
    assert available_tracker("wandb") == "none"
    assert not takes_pictures("wandb")
    assert capsys.readouterr().err.startswith("tracker wandb is not installed; training goes on without it")
    with pytest.raises(SettingsError, match=r"--tracker wandy is unknown; expected none or one of .*wandb"):
        available_tracker("wandy")


def test_a_tracker_that_fails_later_is_left_out_with_one_line(tmp_path, monkeypatch, capsys):
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
    tracker = Tracker(accelerator, "tensorboard", {}, 0)

    def refuse(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(accelerator.get_tracker("tensorboard").writer, "add_scalar", refuse)
    for step in (2, 3):
        tracker.scalars(step, {"train/loss": 1.0})
        tracker.pictures(step, {})
    tracker.finish()
    (line,) = capsys.readouterr().out.splitlines()
    assert "No space left on device" in line


def test_every_process_writes_a_trace_of_the_steps_behind_the_first_three(tiny_folder, tmp_path):
    flags = ["--max-steps", "8", "--log-every", "4", "--trace-steps", "2", "--tracker", "none"]
    command = ["train.py", "--dataset", tiny_folder, *TINY, *flags, "--output-dir", tmp_path]
    result = launch(*command, profile="multi_cpu")
    assert result.returncode == 0, result.stderr
    operators = result.stdout.split("traces, a file for each process")[0]
    assert "Self CPU %" in operators
    assert "aten::" in operators  # which of them take most time depends on the load of the machine
    for process in (0, 1):
        events = json.loads((tmp_path / "traces" / f"process-{process}.json").read_text())["traceEvents"]
        steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep")}
        assert steps == {"ProfilerStep#3", "ProfilerStep#4"}
        assert any(event["name"] == "aten::convolution_backward" for event in events)


def test_a_run_that_ends_before_its_traced_steps_leaves_no_profiler_running(tmp_path):
    log = new_log(tmp_path, RunState(), trace_steps=5)
    for _ in range(3 + 2):
        log.end_step(4)
    log.close()
    assert (tmp_path / "traces" / "process-0.json").exists()
    log.end_step(4)


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The seconds of the host's clock, which only the test changes."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def measured(clock: SimpleNamespace, *, steps: int, data: float, compute: float) -> Meter:
    """A meter that has seen `steps` steps of 4 images after the warm-up.

    Each waits `data` seconds for its data and computes `compute` seconds; before it there is an evaluation.
    """
    meter = Meter(Accelerator(cpu=True))
    for step in range(3 + steps):
        with meter.pause():
            clock.now += 20
        clock.now += data if step >= 3 else 100
        meter.data_ready()
        clock.now += compute
        meter.end_step(4)
    return meter


def test_speed_is_that_of_the_steps_since_the_last_summary_but_for_warm_up_and_evaluations(clock):
    meter = measured(clock, steps=5, data=1.0, compute=3.0)
    assert meter.summary() == {"perf/images_per_second": 1.0, "perf/data_wait_percent": 25.0}
    meter.data_ready()
    clock.now += 2
    meter.end_step(8)
    assert meter.summary()["perf/images_per_second"] == 4.0


def test_numbers_are_those_of_the_process_that_waits_longest_for_its_data(clock, monkeypatch):
    meter = measured(clock, steps=2, data=1.0, compute=3.0)

    def gathered(own: list[tuple]) -> list[tuple]:
        ((window, memory),) = own
        _, seconds, _ = window
        return [(window, memory), ([16.0, seconds, 3.0], memory), ([8.0, seconds, 0.0], memory)]

    monkeypatch.setattr(meter_module, "gather_object", gathered)
    assert meter.summary() == {"perf/images_per_second": 2.0, "perf/data_wait_percent": 37.5}
