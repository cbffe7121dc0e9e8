"""How fast a run is, and what it waits for."""

import time

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

WARMUP_STEPS = 3  # allocators, kernel choice and worker start-up belong to no steady state


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


class Meter:
    """Throughput over steps, without warm-up and without whatever happens between `pause` and the next step.

    Host clocks: on an accelerator the wait for data is what the host waits, while the device may still be busy.
    """

    def __init__(self) -> None:
        self._steps_seen = 0
        self._images = 0.0
        self._seconds = 0.0
        self._waited = 0.0
        self._step_started: float | None = None

    def start_step(self) -> None:
        """The step begins, and with it the wait for its data."""
        self._step_started = time.perf_counter()

    def data_ready(self) -> None:
        """The step's micro-batches are here."""
        assert self._step_started is not None
        self._step_wait = time.perf_counter() - self._step_started

    def end_step(self, images: float) -> None:
        """The step is done; `images` were in it over all processes."""
        assert self._step_started is not None
        self._steps_seen += 1
        if self._steps_seen > WARMUP_STEPS:
            self._images += images
            self._seconds += time.perf_counter() - self._step_started
            self._waited += self._step_wait

    def summary(self) -> dict[str, float]:
        """`perf/images_per_second`, `perf/data_wait_percent` since the last call, and `perf/peak_memory_gb` on CUDA."""
        values = {}
        if self._seconds > 0:
            values["perf/images_per_second"] = self._images / self._seconds
            values["perf/data_wait_percent"] = 100 * self._waited / self._seconds
        if torch.cuda.is_available():
            values["perf/peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        self._images, self._seconds, self._waited = 0, 0.0, 0.0
        return values


def brief(values: dict[str, float | None]) -> str:
    """Loss, speed and what is waited for, for a progress bar."""
    parts = [f"loss {values['train/loss']:.3f}" if values["train/loss"] is not None else "no loss"]
    if "perf/images_per_second" in values:
        parts.append(f"{values['perf/images_per_second']:.1f} images/s")
        parts.append(f"{values['perf/data_wait_percent']:.0f}% waiting for data")
    return ", ".join(parts)
