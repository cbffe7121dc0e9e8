"""What is measured, logged and said while training, each number and line written out.

Modules: train_utils/monitoring/monitor.py, train_utils/monitoring/throughput.py, train_utils/monitoring/flops.py,
train_utils/monitoring/profiler.py, train_utils/monitoring/rehearsal.py.
"""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from in_process import parsed, process_state_kept
from torch import nn
from torch.autograd import DeviceType

from tasks.classes import Classes
from train_utils.monitoring import flops, monitor, rehearsal
from train_utils.monitoring.monitor import Monitor, brief
from train_utils.monitoring.profiler import top_operators
from train_utils.monitoring.rehearsal import MeasuredSeconds, Pace, rehearsed_steps, steps_that_fit
from train_utils.monitoring.throughput import LossWindow, Meter, WindowTotals
from train_utils.monitoring.tracking import RunLog
from train_utils.nan_guard import StepResult
from train_utils.run_state import RunState
from train_utils.schedule import Schedule
from train_utils.settings.record import RunSettings

NAN = float("nan")
FLAGS = ("--dataset", "shapes", "--plan", "none", "--batch-size", "4", "--max-steps", "20", "--log-every", "2")


class Written(SimpleNamespace):
    """A log that remembers the records."""

    def __init__(self, folder: Path) -> None:
        settings = RunSettings(
            flags={"cache": False, "trace_steps": 0}, profile={"mixed_precision": "no"}, num_workers=2
        )
        super().__init__(settings=settings, output_dir=folder, records=[])

    def scalars(self, step: int, epoch: float, values: dict) -> None:
        self.records.append((step, epoch, values))


def new_monitor(folder: Path, state: RunState, *flags: str) -> Monitor:
    schedule = Schedule.from_args(parsed(*FLAGS, *flags), 10, 20)
    model = nn.Linear(1, 1)
    task = Classes(("a", "b"))
    return Monitor(Accelerator(cpu=True), model, schedule, state, Written(folder), flops=1e12, task=task)


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    with process_state_kept():
        yield


def test_a_step_is_made_where_loss_and_gradient_are_finite():
    decisions = [StepResult(1, loss, norm, False).is_made for loss in (0.5, NAN, math.inf) for norm in (1.0, NAN)]
    assert decisions == [True, False, False, False, False, False]


def test_the_loss_that_is_logged_is_the_mean_of_the_steps_that_were_made():
    window = LossWindow()
    assert window.mean() is None
    for loss, norm in ((1.0, 1.0), (NAN, 1.0), (9.0, NAN), (4.0, 1.0)):
        window.add(StepResult(1, loss, norm, False))
    assert window.saved() == {"total": 5.0, "steps": 2}
    assert LossWindow(**window.saved()).mean() == 2.5
    assert window.mean() == 2.5
    assert window.mean() is None
    assert window.saved() == {"total": 0.0, "steps": 0}


def test_a_record_of_training_holds_the_means_since_the_last_one(tmp_path, monkeypatch):
    state = RunState(skipped=3, window={"total": 3.0, "steps": 1})
    run = new_monitor(tmp_path, state)
    speed = {"perf/images_per_second": 8.0, "perf/data_wait_percent": 25.0}
    monkeypatch.setattr(run.meter, "summary", lambda: speed)
    for step, loss in ((1, 1.0), (2, 2.0)):
        run.add([StepResult(step, loss, 10.0 * step, False)])
    state.step = 2
    run.log_training(0.25)
    state.step = 3
    run.add([StepResult(3, NAN, NAN, False)])
    run.log_training(0.125)
    (step, epoch, first), (_, _, second) = run.run_log.records
    assert step == 2
    assert epoch == 2 / 3
    assert first == {"train/loss": 2.0, "train/lr": 0.25, "train/grad_norm": 20.0, "train/skipped_steps": 3} | speed
    assert second["train/loss"] is None
    assert second["train/lr"] == 0.125
    run.close()


def test_images_that_could_not_be_read_are_named_at_the_end(tmp_path, capsys, monkeypatch):
    run = new_monitor(tmp_path, RunState(step=5))
    batches = [{"images": 1, "problems": ["b.png: cut"]}, {"images": 2, "problems": []}]
    run.data_ready(batches)
    run.data_ready([{"problems": ["b.png: cut"]}, {"problems": []}])
    monkeypatch.setattr(monitor, "gather_object", lambda own: [*own, "c.png: of another process", "a.png: empty", *own])
    run.close()
    line = "3 bad samples were skipped in training: a.png: empty; b.png: cut; c.png: of another process\n"
    assert capsys.readouterr().out == line


def test_twenty_bad_samples_are_named_and_all_are_counted(tmp_path, capsys):
    run = new_monitor(tmp_path, RunState(step=5))
    run.data_ready([{"problems": [f"{number:02}.png" for number in range(25)]}])
    run.close()
    line = capsys.readouterr().out
    assert line.startswith("25 bad samples were skipped in training: 00.png; 01.png; ")
    assert line.endswith("; 18.png; 19.png\n")


@pytest.mark.parametrize(("step", "since_best", "is_said"), [(9, 2, True), (9, 1, False), (20, 2, False)])
def test_a_run_out_of_patience_says_at_which_step_it_stops(tmp_path, capsys, step, since_best, is_said):
    run = new_monitor(tmp_path, RunState(step=step, evaluations_since_best=since_best), "--patience", "2")
    run.close()
    line = f"no better mean IoU in 2 evaluations, stopping at step {step}\n"
    assert capsys.readouterr().out == (line if is_said else "")


def test_the_bar_shows_loss_speed_and_the_best_score(tmp_path):
    assert brief({"train/loss": None}) == "no loss"
    assert brief({"train/loss": 0.0}) == "loss 0.000"
    record = {"train/loss": 0.12345, "perf/images_per_second": 12.34, "perf/data_wait_percent": 7.6}
    assert brief(record) == "loss 0.123, 12.3 images/s, 8% waiting for data"
    state = RunState(step=2)
    run = new_monitor(tmp_path, state)
    run.add([StepResult(2, 0.5, 1.0, False)])
    run.log_training(0.1)
    run.show()
    assert run.bar.postfix == "epoch 0.7, loss 0.500"
    state.best = 0.0
    run.show()
    assert run.bar.postfix == "epoch 0.7, loss 0.500, best mean IoU 0.000"
    assert run.bar.n == 4
    assert run.bar.total == 20
    assert run.bar.unit == "step"
    run.close()


def test_a_score_of_zero_is_shown_and_a_run_that_ends_anyway_is_not_called_impatient(capsys):
    monitor = object.__new__(Monitor)
    texts = []
    closed = []
    monitor.bar = SimpleNamespace(
        set_postfix_str=lambda text, refresh: texts.append(text),
        update=lambda: None,
        close=lambda: closed.append("bar"),
    )
    monitor.compared_by = "closeness"
    monitor._brief = "loss 1.000"
    monitor.problems = set()
    monitor.trace = SimpleNamespace(close=lambda: closed.append("trace"))
    for best in (-1.0, 0.0):
        monitor.state = RunState(step=7, best=best)
        monitor.show()
    assert texts == ["loss 1.000", "loss 1.000, best closeness 0.000"]
    for is_last in (True, False):
        monitor.schedule = SimpleNamespace(
            is_out_of_patience=lambda s: True, is_last=lambda s, last=is_last: last, patience=3
        )
        monitor.close()
        said = capsys.readouterr().out
        assert said == ("" if is_last else "no better closeness in 3 evaluations, stopping at step 7\n")
    assert closed == ["bar", "trace"] * 2


def test_a_bottleneck_is_said_once(tmp_path, capsys, monkeypatch):
    state = RunState()
    run = new_monitor(tmp_path, state)
    monkeypatch.setattr(run, "bottleneck", lambda: "slow disk")
    for step in (1, 2):
        state.step = step
        run.add([StepResult(step, 1.0, 1.0, False)])
        run.log_training(0.1)
    run.close()
    assert capsys.readouterr().out == "slow disk\n"


def test_notes_on_the_speed_name_loader_processes_with_the_cache(tmp_path):
    run = new_monitor(tmp_path, RunState())
    run.meter = SimpleNamespace(bottleneck=lambda workers, cached: f"{workers} {cached}", end_step=lambda images: None)
    assert run.bottleneck() == "2 False"
    log = Written(tmp_path)
    log.settings.flags["cache"] = True
    cached = Monitor(
        run.accelerator, nn.Linear(1, 1), run.schedule, RunState(), log, flops=1.0, task=Classes(("a", "b"))
    )
    cached.meter = run.meter
    assert cached.bottleneck() == "2 True"
    calls = []
    run.trace = SimpleNamespace(step=lambda: calls.append("step"), close=lambda: calls.append("close"))
    run.end_step(4)
    run.close()
    cached.close()
    assert calls == ["step", "close"]


def test_communication_that_takes_a_fifth_of_the_time_is_named(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    meter = Meter(Accelerator(cpu=True), nn.Linear(1, 1), 1e12, "no")
    figures = {"backward_compute_comm_overlap_time": 2e9}  # nanoseconds
    meter._ddp = SimpleNamespace(_get_ddp_logging_data=lambda: figures)
    for step in range(3 + 20):
        figures["backward_comm_time"] = 2.5e9 + 1e9 * (step % 2)  # 3 s on average
        now += 1
        meter.data_ready()
        with meter.communicating():
            now += 2
        now += 7
        meter.end_step(4)
    values = meter.summary()
    assert values["perf/communication_percent"] == pytest.approx(30)  # 2 s for the count, 1 s that is not hidden
    assert values["perf/data_wait_percent"] == pytest.approx(10)
    assert values["perf/compute_percent"] == pytest.approx(60)
    assert meter.bottleneck(2, cached=False) == (
        "communication between processes, with waiting, took 30% of the time: raise --batch-size, try --ddp-comm-hook,"
        " or use fewer processes"
    )
    for communication, is_named in ((2.0, True), (1.999, False)):
        meter._total = WindowTotals(steps=20, images=80, seconds=10.0, data=1.0, communication=communication)
        assert (meter.bottleneck(2, cached=False) is not None) is is_named
    meter._total = WindowTotals(steps=20, images=80, seconds=10.0, data=2.0, communication=5.0)
    assert meter.bottleneck(2, cached=False).startswith("training waited for data 20% of the time")  # data come first


@pytest.mark.parametrize("figures", [{}, {"backward_comm_time": 2e9, "backward_compute_comm_overlap_time": 3e9}])
def test_an_exchange_that_is_hidden_or_not_measured_takes_no_time(monkeypatch, figures):
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    meter = Meter(Accelerator(cpu=True), nn.Linear(1, 1), 1e12, "no")
    meter._ddp = SimpleNamespace(_get_ddp_logging_data=lambda: figures)
    for _ in range(3 + 1):
        meter.data_ready()
        now += 10  # and no pixels are counted
        meter.end_step(4)
    values = meter.summary()
    assert values["perf/communication_percent"] == 0
    assert values["perf/compute_percent"] == 100


def test_measurements_of_a_run_name_model_precision_and_traced_steps(tmp_path, monkeypatch):
    recorded_calls = []
    calls = []

    def new_meter(accelerator: Accelerator, *arguments: object) -> SimpleNamespace:
        recorded_calls.append(arguments)
        methods = ("data_ready", "end_step", "communicating", "paused")
        return SimpleNamespace(**{name: lambda *values, name=name: calls.append((name, *values)) for name in methods})

    def new_trace(accelerator: Accelerator, *arguments: object) -> SimpleNamespace:
        recorded_calls.append(arguments)
        return SimpleNamespace(step=lambda: calls.append("trace"), close=lambda: None)

    monkeypatch.setattr(monitor, "Meter", new_meter)
    monkeypatch.setattr(monitor, "StepTrace", new_trace)
    log = Written(tmp_path)
    log.settings.flags["trace_steps"] = 5
    log.settings.profile["mixed_precision"] = "bf16"
    model = nn.Linear(1, 1)
    schedule = Schedule.from_args(parsed(*FLAGS), 10, 20)
    state = RunState(step=6)
    run = Monitor(Accelerator(cpu=True), model, schedule, state, log, flops=3e12, task=Classes(("a", "b")))
    assert recorded_calls == [(model, 3e12, "bf16"), (tmp_path / "traces", 5)]
    run.data_ready([])
    run.communicating()
    run.paused()
    run.end_step(4)
    assert calls == [("data_ready",), ("communicating",), ("paused",), ("end_step", 4), "trace"]
    run.log_evaluation(SimpleNamespace(record=lambda: {"eval/loss": 0.5}))
    assert log.records == [(6, 2.0, {"eval/loss": 0.5})]
    run.close()


@pytest.mark.parametrize(("precision", "peak"), [("no", 156), ("fp16", 312), ("bf16", 312), ("fp8", 156)])
def test_the_peak_of_a_gpu_is_that_of_the_runs_precision(monkeypatch, precision, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    assert flops.peak_teraflops(SimpleNamespace(device=torch.device("cuda", 0)), precision) == peak
    assert flops.peak_teraflops(SimpleNamespace(device=torch.device("cpu")), precision) is None


def row(key: str, count: int, cpu: float, device: float, kind: DeviceType = DeviceType.CPU) -> SimpleNamespace:
    return SimpleNamespace(
        key=key, count=count, self_cpu_time_total=cpu, self_device_time_total=device, device_type=kind
    )


def table_of(*rows: SimpleNamespace) -> list[list[str]]:
    text = top_operators(SimpleNamespace(key_averages=lambda: rows))
    return [line.split() for line in text.splitlines()]


def test_operators_are_listed_by_the_time_that_they_take_themselves():
    rows = [row("add", 7, 1000, 0), row("conv", 2, 3000, 0), row("ProfilerStep#4", 1, 9e9, 0)]
    assert table_of(*rows) == [
        ["operator", "calls", "ms", "share"],
        ["conv", "2", "3.0", "75.0%"],
        ["add", "7", "1.0", "25.0%"],
    ]
    on_device = [row("add", 7, 9000, 1500), row("conv", 2, 10, 500), row("kernel", 9, 0, 5000, DeviceType.CUDA)]
    on_device.append(row("view", 3, 7000, 0))  # which the host does alone
    shown = [["add", "7", "1.5", "75.0%"], ["conv", "2", "0.5", "25.0%"], ["view", "3", "0.0", "0.0%"]]
    assert table_of(*on_device)[1:] == shown
    many = table_of(*[row(f"op{number}", 1, 100 - number, 0) for number in range(30)])
    assert len(many) == 1 + 12
    assert many[-1][0] == "op11"
    assert table_of(row("idle", 1, 0, 0))[1] == ["idle", "1", "0.0", "0.0%"]


def test_steps_of_one_shape_warm_up_for_three_and_are_timed_for_sixty_seven():
    warm_up, timed = rehearsed_steps([(8, 8)] * 500, False)
    assert warm_up == [0, 1, 2]
    assert timed == list(range(3, 70))


def test_evaluations_and_saves_are_spread_over_the_steps_each_by_its_own_interval():
    plan = Schedule.from_args(parsed(*FLAGS, "--eval-every", "10", "--checkpoint-every", "5"), 100, None)
    times = MeasuredSeconds(step=1.0, evaluation=5.0, image=0.5, save=3.0)
    # an evaluation: 5 + 2 pictures of 0.5 + a best model of 1; the end: one more, a save, 24 pictures and the report
    end = 7 + 3 + 12 + 4
    a_step = 1 + 7 / 10 + 3 / 5
    assert steps_that_fit(end + 100 * a_step + 0.1, times, plan, 2) == 100
    assert steps_that_fit(end + 100 * a_step - 0.1, times, plan, 2) == 99


def test_a_late_run_is_told_from_a_tenth_of_its_steps_on(monkeypatch, capsys):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(rehearsal, "PROCESS_START", 940.0)
    for steps, first in ((1000, 100), (60, 20)):
        now = 1000.0
        pace = Pace(10.0, range(steps))
        now += 10_000
        pace.check(first - 1)
        assert capsys.readouterr().out == ""
        pace.check(first)
        assert "time: steps are slower than in the rehearsal" in capsys.readouterr().out
    now = 1000.0
    pace = Pace(10.0, range(100))
    now += 100
    pace.check(20)  # 60 s before, 500 s for all steps and 4 for the report: 9.4 minutes
    assert capsys.readouterr().out == ""
    now = 1000.0
    pace = Pace(10.0, range(100))
    now += 120
    pace.check(20)  # 60 + 600 + 4 s
    assert "the run will end after 11.1 minutes instead of 10;" in capsys.readouterr().out


def test_a_line_of_metrics_has_a_short_epoch_with_null_for_no_number(tmp_path, capsys):
    log = RunLog(Accelerator(cpu=True), tmp_path, "none", RunSettings(total_steps=9), (), 0)
    log.scalars(3, 1 / 3, {"train/loss": NAN, "eval/iou/a": None, "train/lr": math.inf, "train/grad_norm": 0.5})
    log.scalars(4, 0.5, {"train/loss": 1.0})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    nothing = {"train/loss": None, "eval/iou/a": None, "train/lr": None}
    assert lines == [
        {"step": 3, "epoch": 0.3333, **nothing, "train/grad_norm": 0.5},
        {"step": 4, "epoch": 0.5, "train/loss": 1.0},
    ]
    assert json.loads((tmp_path / "run.json").read_text())["total_steps"] == 9
    assert log.is_saved()
    assert not log.takes_pictures()
    again = RunLog(Accelerator(cpu=True), tmp_path, "none", RunSettings(), (), 3)
    again.scalars(4, 0.5, {"train/loss": 2.0})
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [3, 4]
    assert capsys.readouterr().out == ""


def test_a_line_without_an_end_is_left_out_so_that_no_other_is_glued_to_it(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}')
    log = RunLog(Accelerator(cpu=True), tmp_path, "none", RunSettings(), (), 2)
    log.scalars(3, 0.5, {"train/loss": 2.0})
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 3]


def test_a_line_that_the_disk_refuses_is_written_with_the_next_one(tmp_path, capsys):
    log = RunLog(Accelerator(cpu=True), tmp_path, "none", RunSettings(), (), 0)
    (tmp_path / "metrics.jsonl").rename(tmp_path / "away")
    for step in (1, 2):
        log.scalars(step, 0.1, {"train/loss": 1.0})
    assert not log.is_saved()
    assert capsys.readouterr().out.count("could not be written") == 1  # said once
    (tmp_path / "away").rename(tmp_path / "metrics.jsonl")
    assert log.is_saved()
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]
