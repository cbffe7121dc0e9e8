"""The pace of a run: late or in time, by a clock that only the test turns."""

import pytest
from support.clocks import Clock

from train_utils.monitoring import pace as pace_module
from train_utils.monitoring.pace import Pace


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    ("steps", "step", "seconds", "is_said"),
    [
        (100, 19, 1000, False),  # the pace is known after twenty steps
        (100, 20, 1000, True),
        (1000, 99, 1000, False),  # and a tenth of all
        (1000, 100, 1000, True),
        (100, 50, 313, False),  # 2 x 313 + 4 seconds are 105% of ten minutes
        (100, 50, 313.2, True),
        (60, 19, 10_000, False),
        (60, 20, 10_000, True),
    ],
)
def test_a_run_is_late_where_it_takes_a_twentieth_more(clock, capsys, steps, step, seconds, is_said):
    pace = Pace(10, range(0, steps), "train.py again")
    clock.takes(seconds)
    for _ in range(2):
        pace.check(step)
    assert capsys.readouterr().out.count("steps are slower than in the rehearsal") == is_said


def test_a_run_without_minutes_is_never_late(clock, capsys):
    pace = Pace(None, range(0, 300), "train.py again")
    clock.takes(9999)
    pace.check(200)
    assert capsys.readouterr().out == ""


def test_a_run_that_will_be_late_is_told_so_once_with_its_minutes(clock, capsys):
    pace = Pace(2.25, range(50, 350), "train.py again")
    for step in range(51, 200):
        clock.takes(0.7)  # 300 steps in 210 s
        pace.check(step)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("time: steps are slower than in the rehearsal, so the run will end after")
    assert "minutes instead of 2.25;" in line
    assert line.endswith("this goes on: train.py again")


def test_a_run_in_time_is_not_told_anything(clock, capsys):
    pace = Pace(2.0, range(50, 350), "train.py again")
    for step in range(51, 200):
        clock.takes(0.35)  # 300 steps in 105 s
        pace.check(step)
    assert capsys.readouterr().out == ""


def test_the_pace_of_a_resumed_run_is_that_of_its_own_steps(clock, capsys):
    pace = Pace(10, range(900, 1000), "train.py again")
    clock.takes(100)
    pace.check(950)  # 100 seconds are left
    assert capsys.readouterr().out == ""
    pace.check(920)  # 400 seconds and more
    assert capsys.readouterr().out == ""
    clock.takes(100)
    pace.check(920)
    assert "will end after 16.7 minutes instead of 10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "minutes"),
    [
        (100, None),  # 60 s before, 500 s for all steps and 4 for the report: 9.4 minutes
        (120, 11.1),  # 60 + 600 + 4 s
    ],
)
def test_pace_counts_the_time_before_the_first_step(clock, monkeypatch, capsys, seconds, minutes):
    monkeypatch.setattr(pace_module, "PROCESS_START", clock.now - 60)
    pace = Pace(10.0, range(100), "train.py again")
    clock.takes(seconds)
    pace.check(20)
    line = f"the run will end after {minutes} minutes instead of 10;"
    assert (line in capsys.readouterr().out) is (minutes is not None)
