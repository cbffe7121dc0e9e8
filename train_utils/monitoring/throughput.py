"""The speed of a run, and its waiting times."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from train_utils.monitoring.flops import peak_teraflops

WARMUP_STEPS = 3  # steps that are not measured: allocators, kernel choice and worker start-up slow them down
ENOUGH_STEPS = 20  # steps that are measured before a bottleneck is named
MUCH_WAITING = 20  # percent of the time
EXCHANGE_INTERVAL = 20  # on CUDA the exchange of gradients is measured in one of this many steps

Mark: TypeAlias = float | torch.cuda.Event  # a moment: seconds on the host's clock, or an event on the device


@dataclass
class WindowTotals:
    """Counts of steps and of their images over all processes; seconds of steps, of data waits and of communication."""

    steps: int = 0
    images: float = 0.0
    seconds: float = 0.0
    data: float = 0.0
    communication: float = 0.0

    def add(self, other: "WindowTotals") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class _Marks:
    """The moments of one step, which begins when the step before it ends. Pauses are evaluations and saves."""

    begin: Mark
    data: Mark | None = None
    communication: tuple[Mark, Mark] | None = None  # begin and end of the wait for the counts of all processes
    pauses: list[tuple[Mark, Mark]] = field(default_factory=list)
    end: Mark | None = None
    images: float = 0.0


class Meter:
    """Measures the throughput of the steps and the parts of their time, without warm-up, evaluations and saves.

    A step lasts from the end of the previous step to its own end. On CUDA, times come from device events, elsewhere
    from the host's clock. A step is split into

    - the wait for data: on CUDA the time in which the device is idle until its next batch;
    - communication, including the wait for slower processes: the count of valid pixels before the loss, and the part of
      the gradients' exchange that does not overlap with the backward pass, as DistributedDataParallel measures it; this
      part is not known under another wrapper (FSDP, DeepSpeed);
    - computation: the rest.

    Args:
        model: the model that trains, wrapped, not compiled.
        flops: FLOPs of training on one image.
        precision: the profile's precision, on which the device's peak depends.
    """

    def __init__(self, accelerator: Accelerator, model: nn.Module, flops: float, precision: str) -> None:
        self.accelerator = accelerator
        self.flops = flops
        self.peak = peak_teraflops(accelerator, precision)
        self._on_cuda = accelerator.device.type == "cuda"
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        if self._ddp is not None:
            # on CUDA the host waits for the events of a sample
            steps_for_one_sample = EXCHANGE_INTERVAL if self._on_cuda else 1
            self._ddp._set_ddp_runtime_logging_sample_rate(steps_for_one_sample)
        self._steps_seen = 0
        self._step = _Marks(self._now())
        self._over: list[_Marks] = []  # steps whose events may not have happened yet
        self._window = WindowTotals()  # since the last summary
        self._total = WindowTotals()

    def data_ready(self) -> None:
        """Note that the next step's micro-batches are here."""
        self._step.data = self._now()

    @contextmanager
    def communication(self) -> Iterator[None]:
        """A context for the wait for the count that all processes share."""
        before = self._now()
        yield
        self._step.communication = before, self._now()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A context for work that belongs to no step."""
        before = self._now()
        yield
        self._step.pauses.append((before, self._now()))

    def end_step(self, images: float) -> None:
        """Note that a step is queued, with `images` images over all processes; the next step begins."""
        step = self._step
        step.end = self._now()
        step.images = images
        self._step = _Marks(step.end)
        self._steps_seen += 1
        if self._steps_seen > WARMUP_STEPS:
            self._over.append(step)
        self._settle()

    def summary(self) -> dict[str, float]:
        """Means since the last call, of the process that waits longest for its data; every process must call it.

        `perf/images_per_second`, `perf/teraflops_per_device`, `perf/peak_flops_percent` (where the peak is known),
        `perf/data_wait_percent`, `perf/compute_percent`, `perf/communication_percent` (of several processes), and on
        CUDA `perf/peak_memory_gb`.
        """
        self._settle()
        peak_memory = torch.cuda.max_memory_allocated() / 1e9 if self._on_cuda else 0.0
        own_window = self._window
        self._window = WindowTotals()
        gathered = gather_object([(own_window, peak_memory)])
        windows = [totals for totals, _ in gathered]
        window = max(windows, key=lambda totals: totals.data)  # a process that waits for data keeps the others waiting
        self._total.add(window)
        values: dict[str, float] = {}
        if window.seconds > 0:
            values["perf/images_per_second"] = window.images / window.seconds
            teraflops = self.flops * values["perf/images_per_second"] / self.accelerator.num_processes / 1e12
            values["perf/teraflops_per_device"] = teraflops
            if self.peak is not None:
                values["perf/peak_flops_percent"] = 100 * teraflops / self.peak
            values |= {f"perf/{name}_percent": share for name, share in self._shares(window).items()}
        if self._on_cuda:
            values["perf/peak_memory_gb"] = max(memory for _, memory in gathered)
        return values

    def bottleneck(self, workers: int, cached: bool) -> str | None:
        """A sentence on what slows the run down, data or communication, with advice; None if neither takes much."""
        if self._total.steps < ENOUGH_STEPS:
            return None
        shares = self._shares(self._total)
        if shares["data_wait"] >= MUCH_WAITING:
            remedy = f"raise --num-workers from {workers}"
            if not cached:
                remedy += ", or give --cache"
            return f"training waited for data {shares['data_wait']:.0f}% of the time: {remedy}"
        if shares.get("communication", 0) >= MUCH_WAITING:
            return (
                f"communication between processes, with waiting, took {shares['communication']:.0f}% of the time:"
                " raise --batch-size, try --ddp-comm-hook, or use fewer processes"
            )
        return None

    def _shares(self, totals: WindowTotals) -> dict[str, float]:
        data = 100 * totals.data / totals.seconds
        communication = 100 * totals.communication / totals.seconds
        shares = {"data_wait": data, "compute": 100 - data - communication}
        if self._ddp is not None:
            shares["communication"] = communication
        return shares

    def _settle(self) -> None:
        """Add up the steps that the device has finished: reading their events does not wait."""
        while self._over and self._is_past(self._over[0].end):
            step = self._over.pop(0)
            communication = 0.0
            if self._ddp is not None:
                figures = self._ddp._get_ddp_logging_data()
                hidden = figures.get("backward_compute_comm_overlap_time", 0)
                communication = max(0, figures.get("backward_comm_time", 0) - hidden) / 1e9
                if step.communication:
                    communication += self._seconds(*step.communication)
            pauses = sum(self._seconds(begin, end) for begin, end in step.pauses)
            seconds = self._seconds(step.begin, step.end) - pauses
            data = self._seconds(step.begin, step.data)
            self._window.add(WindowTotals(1, step.images, seconds, data, communication))

    def _now(self) -> Mark:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def _is_past(mark: Mark | None) -> bool:
        return not isinstance(mark, torch.cuda.Event) or mark.query()

    @staticmethod
    def _seconds(begin: Mark, end: Mark) -> float:
        if isinstance(begin, torch.cuda.Event):
            return begin.elapsed_time(end) / 1e3
        return end - begin
