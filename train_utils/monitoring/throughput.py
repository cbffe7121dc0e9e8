"""How fast a run is, and what it waits for."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from train_utils.monitoring.flops import peak_teraflops

WARMUP_STEPS = 3  # allocators, kernel choice and worker start-up belong to no steady state
ENOUGH_STEPS = 20  # before a bottleneck is named
MUCH_WAITING = 20  # percent of the time

Mark: TypeAlias = "float | torch.cuda.Event"  # a moment: seconds on the host's clock, or when the device gets there


class LossWindow:
    """Sum of the steps' losses since the last log line, on the device; no sync point until it is read.

    Args:
        sums: of each process, from `saved`, or empty; on another number of processes the first one takes all.
    """

    def __init__(self, accelerator: Accelerator, sums: list[float], steps: int) -> None:
        self.accelerator = accelerator
        if len(sums) != accelerator.num_processes:
            sums = [sum(sums, 0.0)] + [0.0] * (accelerator.num_processes - 1)
        self._sum = torch.tensor(sums[accelerator.process_index], device=accelerator.device)
        self._steps = steps

    def add(self, loss: Tensor) -> None:
        """Add this process's share of one step's loss."""
        self._sum += loss
        self._steps += 1

    def mean(self) -> float | None:
        """Mean loss of the steps since the last call; every process must call it."""
        total, steps = self.accelerator.reduce(self._sum, "sum").item(), self._steps
        self._sum.zero_()
        self._steps = 0
        return total / steps if steps else None

    def saved(self) -> dict:
        """For a checkpoint; every process must call it."""
        return {"sums": gather_object([self._sum.item()]), "steps": self._steps}


@dataclass
class _Times:
    """Steps, their images over all processes, and seconds: of the steps, of waiting for data, of communication."""

    steps: int = 0
    images: float = 0.0
    seconds: float = 0.0
    data: float = 0.0
    communication: float = 0.0

    def add(self, other: "_Times") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Meter:
    """Throughput of the steps and what they spend their time on, without warm-up and whatever happens between steps.

    On CUDA times are those of device events, elsewhere of the host's clock. A step is split into

    - the wait for data: on CUDA the time the device stands idle for its next batch;
    - communication, waiting for slower processes included: the count of valid pixels before the forward pass, and what
      of the gradients' exchange does not overlap with the backward pass, as DistributedDataParallel measures it; not
      known under another wrapper (FSDP, DeepSpeed);
    - computation: the rest.

    Args:
        model: as it trains, wrapped.
        flops: of training on one image.
        precision: the profile's; what the device can do depends on it.
    """

    def __init__(self, accelerator: Accelerator, model: nn.Module, flops: float, precision: str) -> None:
        self.accelerator = accelerator
        self.flops = flops
        self.peak = peak_teraflops(accelerator, precision)
        self._on_cuda = accelerator.device.type == "cuda"
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        if self._ddp is not None:
            self._ddp._set_ddp_runtime_logging_sample_rate(1)
        self._steps_seen = 0
        self._marks: list[Mark] = []  # of this step: begin, data, before and after the count, end
        self._last: tuple[list[Mark], float] | None = None  # marks and images of the step before, whose events are over
        self._window, self._total = _Times(), _Times()

    def start_step(self) -> None:
        """The step begins, and with it the wait for its data."""
        self._marks = [self._now()]

    def data_ready(self) -> None:
        """The step's micro-batches are here."""
        self._marks.append(self._now())

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Around the count that all processes share."""
        self._marks.append(self._now())
        yield
        self._marks.append(self._now())

    def end_step(self, images: float) -> None:
        """The step is done; `images` were in it over all processes."""
        self._marks.append(self._now())
        self._steps_seen += 1
        self._settle()
        if self._steps_seen > WARMUP_STEPS:
            self._last = self._marks, images

    def summary(self) -> dict[str, float]:
        """Means since the last call, of the process that waits longest for its data; every process must call it.

        `perf/images_per_second`, `perf/teraflops_per_device`, `perf/peak_flops_percent` (where the peak is known),
        `perf/data_wait_percent`, `perf/compute_percent`, `perf/communication_percent` (of several processes), and on
        CUDA `perf/peak_memory_gb`.
        """
        if self._on_cuda:
            torch.cuda.synchronize()
        self._settle()
        peak_memory = torch.cuda.max_memory_allocated() / 1e9 if self._on_cuda else 0.0
        window, self._window = self._window, _Times()
        every = gather_object([(window, peak_memory)])  # who waits for data keeps the others waiting
        window = max((times for times, _ in every), key=lambda times: times.data)
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
            values["perf/peak_memory_gb"] = max(memory for _, memory in every)
        return values

    def bottleneck(self, workers: int, cached: bool) -> str | None:
        """One sentence on what the run so far has been waiting for, and what to do about it, if it waited for much."""
        if self._total.steps < ENOUGH_STEPS:
            return None
        shares = self._shares(self._total)
        if shares["data_wait"] >= MUCH_WAITING:
            remedy = f"raise --num-workers from {workers}" + ("" if cached else ", or --cache")
            return f"waiting for data {shares['data_wait']:.0f}% of the time: {remedy}"
        if shares.get("communication", 0) >= MUCH_WAITING:
            return (
                f"communication and waiting for other processes {shares['communication']:.0f}% of the time:"
                " raise --batch-size, try --ddp-comm-hook, or take fewer processes"
            )
        return None

    def _shares(self, times: _Times) -> dict[str, float]:
        data, communication = (100 * part / times.seconds for part in (times.data, times.communication))
        shares = {"data_wait": data, "compute": 100 - data - communication}
        known = self._ddp is not None
        return shares | ({"communication": communication} if known else {})

    def _settle(self) -> None:
        """Add up the step before this one: its events are over, so that reading them does not wait."""
        if self._last is None:
            return
        (begin, data, before, after, end), images = self._last
        self._last = None
        exchange = 0.0
        if self._ddp is not None:
            figures = self._ddp._get_ddp_logging_data()
            hidden = figures.get("backward_compute_comm_overlap_time", 0)
            exchange = max(0, figures.get("backward_comm_time", 0) - hidden) / 1e9
        communication = self._seconds(before, after) + exchange if self._ddp is not None else 0.0
        self._window.add(_Times(1, images, self._seconds(begin, end), self._seconds(begin, data), communication))

    def _now(self) -> Mark:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def _seconds(begin: Mark, end: Mark) -> float:
        return begin.elapsed_time(end) / 1e3 if isinstance(begin, torch.cuda.Event) else end - begin
