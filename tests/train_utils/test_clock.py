"""The clock of a run with --max-minutes: it ends in time, all processes at the same step, and a resumed run goes on.

Module: train_utils/schedule.py.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, process_time
from time import time as wall_clock
from types import SimpleNamespace

import psutil
import pytest
import torch
from support.in_process import run_train
from support.launches import PROGRAMS, launch

from train_utils import schedule as clock_module
from train_utils.optim import learning_rate
from train_utils.run_state import RunState, StepResult
from train_utils.schedule import Clock

NETWORK = ["--plan", "none", "--base-channels", "2", "--depth", "2", "--norm", "group", "--num-workers", "0"]
ALONE = SimpleNamespace(is_main_process=True, num_processes=1)
QUICK = [*NETWORK, "--batch-size", "4", "--tracker", "none", "--log-every", "1"]


@pytest.fixture
def time(monkeypatch) -> SimpleNamespace:
    """The milliseconds since the program began."""
    now = SimpleNamespace(value=0)
    monkeypatch.setattr(clock_module, "milliseconds_since_start", lambda: now.value)
    return now


def make_step(clock: Clock, time: SimpleNamespace, milliseconds: int) -> None:
    progress = clock.reading(steps_ahead=2)
    time.value += milliseconds
    clock.note([StepResult(1, 1.0, 1.0, False, progress)])


def train_on(clock: Clock, time: SimpleNamespace, step_milliseconds: int) -> None:
    """Make steps until the clock ends them."""
    while not clock.progress.is_over:
        make_step(clock, time, step_milliseconds)


@pytest.mark.parametrize("step_milliseconds", [70, 1_300, 9_000])
def test_a_run_ends_before_its_time_by_less_than_two_steps_and_what_the_end_takes(time, step_milliseconds):
    clock = Clock(1.0)
    time.value = 5_000
    with clock.evaluating(ALONE):
        time.value += 2_000
    with clock.saving(RunState()):
        time.value += 400
    train_on(clock, time, step_milliseconds)
    end = 1.25 * 2_400 + clock_module.FINISH
    assert 60_000 - end - 2 * step_milliseconds < time.value <= 60_000 - end


def test_progress_never_falls_when_an_evaluation_takes_longer_than_those_before(time):
    clock = Clock(1.0)
    shares = []
    for duration in (9_000, 500, 6_000, 100):
        time.value += 4_000
        with clock.evaluating(ALONE):
            time.value += duration
        now = time.value
        make_step(clock, time, 100)
        shares.append(clock.progress.share)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(now / (60_000 - clock_module.FINISH - 1.25 * 6_000))


@pytest.mark.parametrize(
    ("minutes", "passed", "is_due", "affords"),
    [(1.0, 4_000, False, False), (1.0, 6_000, True, False), (30.0, 50_000, False, False), (30.0, 60_000, False, True)],
    ids=["early", "a tenth of the time", "early in a long run", "a minute"],
)
def test_the_first_evaluation_comes_after_a_tenth_of_the_time_or_a_minute(time, minutes, passed, is_due, affords):
    clock = Clock(minutes)
    time.value = 10_000
    make_step(clock, time, 0)
    make_step(clock, time, passed)
    make_step(clock, time, 0)
    assert clock.needs_evaluation() is is_due
    assert clock.progress.affords_evaluation is affords
    with clock.evaluating(ALONE):
        pass
    assert not clock.needs_evaluation()


@pytest.mark.parametrize(("spaces", "affords"), [(True, [False, False, True]), (False, [True, True, True])])
def test_evaluations_wait_until_they_take_a_tenth_of_the_time_unless_their_steps_are_typed(time, spaces, affords):
    clock = Clock(1.0, spaces_evaluations=spaces)
    make_step(clock, time, 5_000)
    afforded = [clock.progress.affords_evaluation]
    with clock.evaluating(ALONE):
        time.value += 1_000
    for now in (19_999, 20_000):
        time.value = now
        make_step(clock, time, 0)
        afforded.append(clock.progress.affords_evaluation)
    assert afforded == affords


def test_shortly_before_the_end_there_is_the_last_evaluation_alone(time):
    clock = Clock(1.0, spaces_evaluations=False)
    time.value = 30_000
    with clock.evaluating(ALONE):
        time.value += 4_000
    afforded = {}
    while not clock.progress.is_over:
        make_step(clock, time, 1_000)
        afforded[time.value] = clock.progress.affords_evaluation
    # an evaluation that begins later leaves no step behind it
    last = 60_000 - clock_module.FINISH - 1.25 * 4_000 - 4_000 - 1_000
    assert {now for now, affords in afforded.items() if affords} == {now for now in afforded if now <= last}


@pytest.mark.parametrize(("duration", "is_over"), [(15_000, False), (30_000, True)])
def test_an_evaluation_behind_which_no_step_fits_is_the_last_one(time, duration, is_over):
    clock = Clock(1.0)
    for _ in range(5):
        make_step(clock, time, 1_000)
    with clock.evaluating(ALONE):
        time.value += duration
    assert clock.progress.is_over is is_over


def test_no_step_follows_the_last_evaluation(time):
    clock = Clock(1.0)
    with clock.evaluating(ALONE):
        time.value += 10_000
    train_on(clock, time, 10)
    with clock.evaluating(ALONE):
        time.value += 2_000  # a fifth of what was expected
    assert clock.progress.is_over


def test_a_resumed_run_has_the_time_that_is_left(time):
    clock = Clock(3, 2)
    time.value = 10_000
    train_on(clock, time, 1_000)
    assert clock.now() > 160_000
    assert 50_000 < time.value < 60_000


def test_a_save_keeps_the_time_and_the_first_one_is_waited_for(time):
    clock = Clock(3, 1)
    time.value = 7_000
    state = RunState()
    assert clock.measures_save
    with clock.saving(state):
        time.value += 400
    assert state.elapsed == 67_000
    assert not clock.measures_save


def seconds_since_start() -> float:
    return monotonic() - clock_module.program_start()


def test_a_program_begins_with_its_launcher_unless_that_has_started_its_processes_again(monkeypatch):
    process, launcher = psutil.Process(), psutil.Process(1)
    monkeypatch.setattr(psutil.Process, "parent", lambda _: launcher)
    monkeypatch.setattr(clock_module, "launcher_words", lambda: ["accelerate"])
    assert seconds_since_start() == pytest.approx(wall_clock() - launcher.create_time(), abs=1)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert seconds_since_start() == pytest.approx(wall_clock() - process.create_time(), abs=1)


@contextmanager
def quick_end() -> Iterator[None]:
    """Within, the program begins now, and its time is five times that of the processor, whatever else it runs."""

    def fast_time() -> float:
        return 5 * process_time()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock_module, "time", SimpleNamespace(monotonic=fast_time))
        patch.setattr(clock_module, "PROGRAM_START", fast_time())
        patch.setattr(clock_module, "FINISH", 500)
        yield


@pytest.fixture(scope="module")
def timed(tiny_folder, tmp_path_factory):
    """A run of twelve seconds of that time."""
    folder = tmp_path_factory.mktemp("timed") / "run"
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer of a process imports for a second
    with quick_end():
        return run_train(folder, "--dataset", tiny_folder, *QUICK, "--max-minutes", "0.2")


def test_a_run_by_the_clock_records_its_steps_and_its_learning_rate_falls_with_the_time(timed):
    assert timed.exit_code == 0, timed.output
    (step,) = timed.steps("eval/loss")[-1:]
    assert timed.settings["total_steps"] == step == timed.steps("train/loss")[-1]
    assert json.loads((timed.folder / "finished.json").read_text())["step"] == step
    rates = timed.values("train/lr")
    highest = rates.index(max(rates))
    assert rates[highest:] == sorted(rates[highest:], reverse=True)
    assert rates[-1] < 0.2 * rates[highest]
    assert learning_rate(30_000, 60_000, 1.0, 0, "cosine") == pytest.approx((1 + math.cos(math.pi / 2)) / 2)


def test_more_minutes_go_on_where_the_run_had_ended(timed, tiny_folder):
    last = timed.steps("train/loss")[-1]
    flags = ["--dataset", tiny_folder, *QUICK, "--resume", "auto"]
    with quick_end():
        for length in (["--max-minutes", "0.2"], ["--max-steps", "1"]):
            assert "the run has finished" in run_train(timed.folder, *flags, *length).output
        longer = run_train(timed.folder, *flags, "--max-minutes", "0.3")
    assert longer.exit_code == 0, longer.output
    assert longer.steps("train/loss")[-1] > last


@pytest.mark.slow
def test_two_processes_end_at_the_same_step(tiny_folder, tmp_path):
    flags = ["--dataset", tiny_folder, "--output-dir", tmp_path / "run", *QUICK, "--max-minutes", "0.5"]
    result = launch("train.py", *flags, profile="multi_cpu", options=["--num_processes", "2"], forked=False)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "run" / "finished.json").read_text())["step"] >= 1


@pytest.mark.slow
def test_a_run_that_records_each_step_ends_on_a_device_whose_results_are_read_late(tiny_folder, tmp_path):
    flags = ["--dataset", tiny_folder, "--output-dir", tmp_path / "run", *QUICK, "--eval-every", "9999"]
    results = tmp_path / "results.json"
    begin = monotonic()
    process = launch(PROGRAMS / "pretend_device.py", results, "train.py", *flags, "--max-minutes", "0.3")
    assert process.returncode == 0, process.stderr
    assert json.loads(results.read_text())[0]["error"] == ""
    assert monotonic() - begin < 30
    assert json.loads((tmp_path / "run" / "finished.json").read_text())["step"] >= 1
