"""How fast a run is, and how long it waits for its data.

Module: train_utils/run_log.py.
"""

import time

import pytest
from accelerate import Accelerator

from train_utils import run_log as meter_module
from train_utils.run_log import Meter


class Clock:
    """A clock that we turn."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def measured(clock: Clock, *, steps: int, data: float, compute: float) -> Meter:
    """A meter that has seen `steps` steps of 4 images after the warm-up.

    Each waits `data` seconds for its data and computes `compute` seconds; before it there are an evaluation and a save.
    """
    meter = Meter(Accelerator(cpu=True))
    for step in range(3 + steps):
        for seconds in (20, 30):
            with meter.pause():
                clock.now += seconds
        clock.now += data if step >= 3 else 100
        meter.data_ready()
        clock.now += compute if step >= 3 else 100
        meter.end_step(4)
    return meter


def test_speed_counts_neither_warm_up_nor_evaluations_and_saves(clock):
    values = measured(clock, steps=5, data=1.0, compute=3.0).summary()
    assert values == {"perf/images_per_second": 1.0, "perf/data_wait_percent": 25.0}


def test_speed_is_that_of_the_steps_since_the_last_summary(clock):
    meter = Meter(Accelerator(cpu=True))
    speeds = []
    for seconds in (100, 50, 20, 2, 8):
        meter.data_ready()
        clock.now += seconds
        meter.end_step(8)
        speeds.append(meter.summary().get("perf/images_per_second"))
    assert speeds == [None, None, None, 4.0, 1.0]


def test_numbers_are_those_of_the_process_that_waits_longest_for_its_data(clock, monkeypatch):
    meter = measured(clock, steps=2, data=1.0, compute=3.0)

    def gathered(own: list[tuple]) -> list[tuple]:
        ((window, memory),) = own
        steps, _, seconds, _ = window
        return [(window, memory), ([steps, 16.0, seconds, 3.0], memory), ([steps, 8.0, seconds, 0.0], memory)]

    monkeypatch.setattr(meter_module, "gather_object", gathered)
    assert meter.summary() == {"perf/images_per_second": 2.0, "perf/data_wait_percent": 37.5}


@pytest.mark.parametrize(("steps", "data", "is_named"), [(20, 0.25, True), (20, 0.125, False), (19, 0.75, False)])
def test_a_bottleneck_takes_a_fifth_of_the_time_over_twenty_steps(clock, steps, data, is_named):
    meter = measured(clock, steps=steps, data=data, compute=1 - data)
    meter.summary()
    assert (meter.bottleneck(2, cached=False) is not None) == is_named


@pytest.mark.parametrize(
    ("cached", "remedy"), [(False, "raise --num-workers from 2, or give --cache"), (True, "raise --num-workers from 2")]
)
def test_waiting_for_data_is_named_by_the_flags_that_help(clock, cached, remedy):
    meter = measured(clock, steps=20, data=0.5, compute=0.5)
    meter.summary()
    assert meter.bottleneck(2, cached) == f"training waited for data 50% of the time: {remedy}"
