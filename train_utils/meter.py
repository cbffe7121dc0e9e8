"""How fast a run trains, and how long it waits for its data."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

WARMUP_STEPS = 3  # steps that are not measured: allocators, kernel choice and worker start-up slow them down

Mark: TypeAlias = float | torch.cuda.Event  # a moment: seconds on the host's clock, or an event on the device


class Meter:
    """Measures the steps of a run, but for the first ones, evaluations and saves.

    A step lasts from the end of the step before to its own end. On CUDA times come from device events, so the wait for
    data is the time in which the device is idle until its next batch; elsewhere they come from the host's clock.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._on_cuda = accelerator.device.type == "cuda"
        self._steps_seen = 0
        self._begin = self._data = self._now()
        self._steps: list[tuple[Mark, Mark, Mark, float]] = []  # since the last summary

    def data_ready(self) -> None:
        """Note that the next step's micro-batches are here."""
        self._data = self._now()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A context for evaluations and saves, which are not timed: the next step begins behind it."""
        yield
        self._begin = self._now()

    def end_step(self, images: float) -> None:
        """Note that a step is queued, with `images` images over all processes; the next step begins."""
        end = self._now()
        self._steps_seen += 1
        if self._steps_seen > WARMUP_STEPS:
            self._steps.append((self._begin, self._data, end, images))
        self._begin = end

    def summary(self) -> dict[str, float]:
        """Means since the last call, of the process that waits longest for its data; every process must call it.

        `perf/images_per_second`, `perf/data_wait_percent`, and on CUDA `perf/peak_memory_gb`. The device must have
        finished the steps.
        """
        own = np.zeros(3)  # images over all processes; seconds of the steps, and of their waits for data
        for begin, data, end, images in self._steps:
            own += (images, _seconds(begin, end), _seconds(begin, data))
        self._steps.clear()
        memory = torch.cuda.max_memory_allocated() / 1e9 if self._on_cuda else 0.0
        gathered = gather_object([(own.tolist(), memory)])
        # the others wait for a process that waits for data
        images, seconds, waited = max((window for window, _ in gathered), key=lambda window: window[-1])
        values: dict[str, float] = {}
        if seconds > 0:
            values["perf/images_per_second"] = images / seconds
            values["perf/data_wait_percent"] = 100 * waited / seconds
        if self._on_cuda:
            values["perf/peak_memory_gb"] = max(memory for _, memory in gathered)
        return values

    def _now(self) -> Mark:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _seconds(begin: Mark, end: Mark) -> float:
    if isinstance(begin, torch.cuda.Event):
        return begin.elapsed_time(end) / 1e3
    return end - begin
