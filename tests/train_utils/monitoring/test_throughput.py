"""Where the time of a step goes.

Modules: train_utils/monitoring/throughput.py.
"""

import time
from dataclasses import replace
from itertools import cycle

import pytest
from accelerate import Accelerator
from torch import nn

from train_utils.monitoring.throughput import Meter

NAN = float("nan")


class Exchange(nn.Module):
    """A network in DistributedDataParallel, which says how long it took to exchange the gradients of each step."""

    def __init__(self, *nanoseconds: dict[str, float]) -> None:
        super().__init__()
        self.nanoseconds = cycle(nanoseconds)

    def _set_ddp_runtime_logging_sample_rate(self, steps: int) -> None:
        self.steps_for_one_sample = steps

    def _get_ddp_logging_data(self) -> dict[str, float]:
        return next(self.nanoseconds)


@pytest.fixture
def new_exchange(monkeypatch) -> type[Exchange]:
    monkeypatch.setattr("train_utils.monitoring.throughput.DistributedDataParallel", Exchange)
    return Exchange


def measured(
    monkeypatch: pytest.MonkeyPatch,
    *,
    steps: int,
    data: float = 0.0,
    count: float | None = 0.0,
    compute: float = 1.0,
    model: nn.Module | None = None,
    peak: float | None = None,
) -> Meter:
    """A meter that has seen `steps` steps of 4 images after the warm-up, by a clock that we turn.

    Args:
        data, count, compute: the seconds that a step waits for its data, for the count of its pixels on all processes
            (None: nothing is counted), and that it computes.
    """
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr("train_utils.monitoring.throughput.peak_teraflops", lambda accelerator, precision: peak)
    meter = Meter(Accelerator(cpu=True), model or nn.Linear(1, 1), 3e12, "no")
    for step in range(3 + steps):
        now += data if step >= 3 else 100
        meter.data_ready()
        with meter.pause():
            now += 20  # an evaluation: the next step's data are here already
        with meter.pause():
            now += 30  # a checkpoint
        if count is not None:
            with meter.communication():
                now += count
        now += compute if step >= 3 else 100
        meter.end_step(4)
    return meter


def test_throughput_counts_neither_warm_up_nor_evaluation_and_checkpoints(monkeypatch):
    values = measured(monkeypatch, steps=5, data=1.0, compute=3.0, peak=12).summary()
    assert values == {
        "perf/images_per_second": 1.0,
        "perf/teraflops_per_device": 3.0,
        "perf/peak_flops_percent": 25.0,
        "perf/data_wait_percent": 25.0,
        "perf/compute_percent": 75.0,
    }


def test_speed_is_that_of_the_steps_since_the_last_summary_behind_three_of_warm_up(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    meter = Meter(Accelerator(cpu=True), nn.Linear(1, 1), 1.0, "no")
    speeds = []
    for seconds in (100, 50, 20, 2, 8):
        meter.data_ready()
        now += seconds
        meter.end_step(8)
        speeds.append(meter.summary().get("perf/images_per_second"))
    assert speeds == [None, None, None, 4.0, 1.0]


def test_numbers_are_those_of_the_process_that_waits_longest_for_its_data(monkeypatch):
    meter = measured(monkeypatch, steps=2, data=1.0, compute=3.0)

    def gathered(own: list[tuple]) -> list[tuple]:
        ((times, memory),) = own
        waiting = replace(times, data=3.0, images=16.0)
        return [(times, memory), (waiting, memory), (replace(times, data=0.0), memory)]

    monkeypatch.setattr("train_utils.monitoring.throughput.gather_object", gathered)
    monkeypatch.setattr(Accelerator, "num_processes", 3)
    values = meter.summary()
    assert values["perf/images_per_second"] == 2.0
    assert values["perf/data_wait_percent"] == 37.5
    assert values["perf/teraflops_per_device"] == 2.0  # 3 TFLOP an image, on three devices


@pytest.mark.parametrize(("steps", "data", "is_named"), [(20, 0.2, True), (20, 0.19, False), (19, 0.9, False)])
def test_a_bottleneck_takes_a_fifth_of_the_time_over_twenty_steps(monkeypatch, steps, data, is_named):
    meter = measured(monkeypatch, steps=steps // 2, data=data, compute=1 - data)
    meter.summary()  # all steps count, not only those since the last log line
    continued = measured(monkeypatch, steps=steps - steps // 2, data=data, compute=1 - data)
    continued._total.add(meter._total)
    continued.summary()
    assert (continued.bottleneck(2, cached=False) is not None) == is_named


def test_time_between_two_steps_counts(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    meter = Meter(Accelerator(cpu=True), nn.Linear(1, 1), 1.0, "no")
    for _ in range(3 + 4):
        meter.data_ready()
        with meter.communication():
            now += 1
        meter.end_step(8)
        now += 3  # a log line, the next step's augmentation
    assert meter.summary()["perf/images_per_second"] == 2


def shown_seconds(seconds: float) -> dict[str, float]:
    """The nanoseconds of an exchange of which two seconds are hidden behind the backward pass."""
    return {"backward_comm_time": 2e9 + 1e9 * seconds, "backward_compute_comm_overlap_time": 2e9}


def test_communication_is_the_count_with_what_is_shown_of_the_exchange(monkeypatch, new_exchange):
    exchange = new_exchange(shown_seconds(0.5), shown_seconds(1.5))
    values = measured(monkeypatch, steps=20, data=1.0, count=2.0, compute=7.0, model=exchange).summary()
    assert values["perf/communication_percent"] == pytest.approx(30)  # 2 s for the count, 1 s that is not hidden
    assert values["perf/data_wait_percent"] == pytest.approx(10)
    assert values["perf/compute_percent"] == pytest.approx(60)


def test_communication_is_named_with_its_share_by_the_flags_that_help(monkeypatch, new_exchange):
    meter = measured(monkeypatch, steps=20, data=1.0, count=3.0, compute=6.0, model=new_exchange({}))
    meter.summary()
    sentence = meter.bottleneck(2, cached=False)
    assert sentence.startswith("communication between processes, with waiting, took 30% of the time")
    assert "--batch-size" in sentence
    assert "--ddp-comm-hook" in sentence
    assert "fewer processes" in sentence


@pytest.mark.parametrize(
    ("seconds", "cached", "sentence"),
    [
        ((0.43, 0.57), False, "training waited for data 43% of the time: raise --num-workers from 2, or give --cache"),
        ((0.43, 0.57), True, "training waited for data 43% of the time: raise --num-workers from 2"),
    ],
    ids=["not cached", "cached"],
)
def test_waiting_for_data_is_named_by_the_flags_that_help(monkeypatch, seconds, cached, sentence):
    data, compute = seconds
    meter = measured(monkeypatch, steps=20, data=data, compute=compute)
    meter.summary()
    assert meter.bottleneck(2, cached) == sentence
