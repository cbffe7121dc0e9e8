"""The clock of a run with --max-minutes: it ends in time, all processes at the same step, and a resumed run goes on.

Module: train_utils/schedule.py.
"""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from support.in_process import run_train
from support.launches import launch

from train_utils import schedule as clock_module
from train_utils.optim import learning_rate
from train_utils.run_state import RunState, StepResult
from train_utils.schedule import Clock

NETWORK = ["--plan", "none", "--base-channels", "2", "--depth", "2", "--norm", "group", "--num-workers", "0"]
QUICK = [*NETWORK, "--batch-size", "4", "--tracker", "none", "--log-every", "1"]


@pytest.fixture
def time(monkeypatch) -> SimpleNamespace:
    """The milliseconds since the process began, which only the test changes."""
    now = SimpleNamespace(value=0)
    monkeypatch.setattr(clock_module, "milliseconds_since_start", lambda: now.value)
    monkeypatch.setattr("os.getloadavg", lambda: (1.0, 1.0, 1.0))
    return now


def new_clock(minutes: float = 1.0, used: float = 0.0) -> Clock:
    return Clock(SimpleNamespace(device=torch.device("cpu")), minutes, used)


def train_on(clock: Clock, time: SimpleNamespace, step_milliseconds: int, first: int = 1) -> int:
    """Make steps until the clock ends them; the number of the last one."""
    step = first - 1
    while not clock.is_over:
        step += 1
        began = clock.now()
        time.value += step_milliseconds
        clock.note([StepResult(step, 1.0, 1.0, False, began)], step)
    return step


@pytest.mark.parametrize("step_milliseconds", [70, 1_300, 9_000])
def test_a_run_ends_before_its_time_by_less_than_two_steps_and_what_the_end_takes(time, step_milliseconds):
    clock = new_clock()
    time.value = 5_000
    clock.start()
    with clock.evaluating():
        time.value += 2_000
    with clock.saving(RunState()):
        time.value += 400
    train_on(clock, time, step_milliseconds)
    end = 1.25 * 2_400 + clock_module.FINISH
    assert 60_000 - end - 2 * step_milliseconds < time.value <= 60_000 - end


def test_progress_never_falls_when_an_evaluation_takes_longer_than_those_before(time):
    clock = new_clock()
    clock.start()
    shares = []
    for duration in (9_000, 500, 6_000, 100):
        time.value += 4_000
        clock.note([StepResult(len(shares) + 1, 1.0, 1.0, False, time.value)], len(shares) + 1)
        with clock.evaluating():
            time.value += duration
        shares.append(clock.done / clock.total)
    assert shares == sorted(shares)
    assert clock.total == 60_000 - clock_module.FINISH - 1.25 * 6_000


def test_the_report_has_more_time_on_a_busy_machine(time, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    totals = []
    for load in (0.5, 1.0, 3.0, 13.0):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        clock = new_clock()
        clock.start()
        totals.append(60_000 - clock.total)
    assert totals == [2500, 2500, 3333, 7500]


@pytest.mark.parametrize(
    ("passed", "epochs", "is_due"),
    [(1_000, 0.5, False), (1_000, 1.0, True), (6_000, 0.5, True)],
    ids=["early", "an epoch", "a tenth of the time"],
)
def test_the_first_evaluation_comes_after_an_epoch_or_a_tenth_of_the_time(time, passed, epochs, is_due):
    clock = new_clock()
    time.value = 10_000
    clock.start()
    time.value += passed
    clock.synchronize()
    assert clock.needs_evaluation(epochs) is is_due
    with clock.evaluating():
        pass
    assert not clock.needs_evaluation(epochs)


def test_evaluations_wait_until_they_take_a_tenth_of_the_time(time):
    clock = new_clock()
    clock.start()
    assert clock.affords_evaluation
    time.value = 5_000
    with clock.evaluating():
        time.value += 1_000
    time.value = 19_999
    clock.synchronize()
    assert not clock.affords_evaluation
    clock.spaces_evaluations = False  # --eval-every is typed
    assert clock.affords_evaluation
    clock.spaces_evaluations = True
    time.value = 20_000
    clock.synchronize()
    assert clock.affords_evaluation


def test_a_resumed_run_has_the_time_that_is_left(time):
    clock = new_clock(minutes=3, used=2)
    time.value = 10_000
    clock.start()
    assert clock.done == 130_000
    train_on(clock, time, 1_000)
    assert 50_000 < time.value < 60_000


def test_a_save_keeps_the_time_and_the_first_one_is_waited_for(time):
    clock = new_clock(minutes=3, used=1)
    time.value = 7_000
    state = RunState()
    assert clock.measures_save
    with clock.saving(state):
        time.value += 400
    assert state.elapsed == 67_000
    assert not clock.measures_save


def test_a_run_of_counted_steps_has_no_clock(time):
    clock = Clock(None, None, 0.0, report_share=0.5)
    time.value = 10**9
    clock.start()
    clock.note([StepResult(1, 1.0, 1.0, False, 10**9)], 1)
    state = RunState()
    with clock.evaluating(), clock.saving(state):
        pass
    assert not clock.is_over
    assert not clock.needs_evaluation(5.0)
    assert clock.affords_evaluation
    assert state.elapsed == 0


@pytest.fixture(scope="module")
def timed(tiny_folder, tmp_path_factory):
    """A run of nine seconds."""
    folder = tmp_path_factory.mktemp("timed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock_module, "PROCESS_START", clock_module.time.monotonic())
        patch.setattr(clock_module, "FINISH", 500)
        patch.setattr(clock_module, "slowness", lambda: 1.0)
        return run_train(folder, "--dataset", tiny_folder, *QUICK, "--max-minutes", "0.2")


def test_a_run_by_the_clock_records_its_steps_when_it_has_ended(timed):
    assert timed.exit_code == 0, timed.output
    (step,) = timed.steps("eval/loss")[-1:]
    assert timed.settings["total_steps"] == step == timed.steps("train/loss")[-1]
    assert json.loads((timed.folder / "finished.json").read_text())["step"] == step


def test_the_learning_rate_of_a_run_by_the_clock_falls_with_the_time(timed):
    rates = timed.values("train/lr")
    highest = rates.index(max(rates))
    assert rates[highest:] == sorted(rates[highest:], reverse=True)
    assert rates[-1] < 0.2 * rates[highest]
    assert learning_rate(30_000, 60_000, 1.0, 0, "cosine") == pytest.approx((1 + math.cos(math.pi / 2)) / 2)


def test_more_minutes_go_on_where_the_run_had_ended(timed, tiny_folder, monkeypatch):
    last = timed.steps("train/loss")[-1]
    monkeypatch.setattr(clock_module, "PROCESS_START", clock_module.time.monotonic())
    monkeypatch.setattr(clock_module, "FINISH", 500)
    monkeypatch.setattr(clock_module, "slowness", lambda: 1.0)
    flags = ["--dataset", tiny_folder, *QUICK, "--resume", "auto", "--max-minutes"]
    assert "the run has finished" in run_train(timed.folder, *flags, "0.2").output
    longer = run_train(timed.folder, *flags, "0.3")
    assert longer.exit_code == 0, longer.output
    assert longer.steps("train/loss")[-1] > last


@pytest.mark.slow
def test_two_processes_end_at_the_same_step(tiny_folder, tmp_path):
    flags = ["--dataset", tiny_folder, "--output-dir", tmp_path / "run", *QUICK, "--max-minutes", "0.5"]
    result = launch("train.py", *flags, profile="multi_cpu", options=["--num_processes", "2"], forked=False)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "run" / "finished.json").read_text())["step"] > 1
