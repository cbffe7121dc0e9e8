"""The speed of a run, its waits for data, and its memory."""

import operator
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

WARMUP_STEPS = 3  # steps that are not measured: allocators, kernel choice and worker start-up slow them down
ENOUGH_STEPS = 20  # steps that are measured before a bottleneck is named
MUCH_WAITING = 20  # percent of the time

Mark: TypeAlias = float | torch.cuda.Event  # a moment: seconds on the host's clock, or an event on the device


class Totals(NamedTuple):
    """Steps and their images over all processes; seconds of the steps, and of their waits for data."""

    steps: int = 0
    images: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0

    def plus(self, other: "Totals") -> "Totals":
        """The sums of both."""
        return Totals(*map(operator.add, self, other))


class _Step(NamedTuple):
    """The moments of a step, and its images."""

    begin: Mark
    data: Mark
    end: Mark
    images: float


class Meter:
    """Measures the steps of a run, but for the first ones, evaluations and saves.

    A step lasts from the end of the step before to its own end. On CUDA times come from device events, so the wait for
    data is the time in which the device is idle until its next batch; elsewhere they come from the host's clock.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._on_cuda = accelerator.device.type == "cuda"
        self._steps_seen = 0
        self._begin = self._data = self._now()
        self._over: list[_Step] = []  # steps whose events may not have happened yet
        self._window = Totals()  # since the last summary
        self._total = Totals()

    def data_ready(self) -> None:
        """Note that the next step's micro-batches are here."""
        self._data = self._now()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A context for work between two steps: the next step begins behind it."""
        yield
        self._begin = self._now()

    def end_step(self, images: float) -> None:
        """Note that a step is queued, with `images` images over all processes; the next step begins."""
        step = _Step(self._begin, self._data, self._now(), images)
        self._begin = step.end
        self._steps_seen += 1
        if self._steps_seen > WARMUP_STEPS:
            self._over.append(step)
        self._settle()

    def summary(self) -> dict[str, float]:
        """Means since the last call, of the process that waits longest for its data; every process must call it.

        `perf/images_per_second`, `perf/data_wait_percent`, and on CUDA `perf/peak_memory_gb`.
        """
        self._settle()
        memory = torch.cuda.max_memory_allocated() / 1e9 if self._on_cuda else 0.0
        gathered = gather_object([(self._window, memory)])
        self._window = Totals()
        # the others wait for a process that waits for data
        window = max((window for window, _ in gathered), key=lambda window: window.waited)
        self._total = self._total.plus(window)
        values: dict[str, float] = {}
        if window.seconds > 0:
            values["perf/images_per_second"] = window.images / window.seconds
            values["perf/data_wait_percent"] = 100 * window.waited / window.seconds
        if self._on_cuda:
            values["perf/peak_memory_gb"] = max(memory for _, memory in gathered)
        return values

    def bottleneck(self, workers: int, cached: bool) -> str | None:
        """A sentence on a run that waits for its data, with advice; None if it does not wait much."""
        if self._total.steps < ENOUGH_STEPS:
            return None
        share = 100 * self._total.waited / self._total.seconds
        if share < MUCH_WAITING:
            return None
        remedy = f"raise --num-workers from {workers}"
        if not cached:
            remedy += ", or give --cache"
        return f"training waited for data {share:.0f}% of the time: {remedy}"

    def _settle(self) -> None:
        """Add up the steps that the device has finished: reading their events does not wait."""
        while self._over and _is_past(self._over[0].end):
            step = self._over.pop(0)
            seconds, waited = _seconds(step.begin, step.end), _seconds(step.begin, step.data)
            self._window = self._window.plus(Totals(1, step.images, seconds, waited))

    def _now(self) -> Mark:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _is_past(mark: Mark) -> bool:
    return not isinstance(mark, torch.cuda.Event) or mark.query()


def _seconds(begin: Mark, end: Mark) -> float:
    if isinstance(begin, torch.cuda.Event):
        return begin.elapsed_time(end) / 1e3
    return end - begin
