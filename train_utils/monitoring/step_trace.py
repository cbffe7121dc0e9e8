"""--trace-steps: the cost of each operator in some steps, and the contents of the memory when it ran out."""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import ProfileKwargs
from torch.autograd import DeviceType

from runtime.console import say
from train_utils.monitoring.throughput import WARMUP_STEPS

TOP_OPERATORS = 12
MEMORY_EVENTS = 100_000  # this many of the last events are kept


class StepTrace:
    """Runs torch.profiler over `steps` steps after the warm-up; with 0 steps it does nothing.

    Each process writes `process-<n>.json` for chrome://tracing. On CUDA the allocator's history is kept through the
    whole run, and written to `memory-process-<n>.pickle`, for pytorch.org/memory_viz, when an allocation fails.
    """

    def __init__(self, accelerator: Accelerator, folder: Path, steps: int) -> None:
        self.accelerator = accelerator
        self.folder = folder
        self._left = 0
        if not steps:
            return
        self._left = WARMUP_STEPS + steps
        folder.mkdir(parents=True, exist_ok=True)  # machines may not share the folder that the main process has made
        schedule = {"wait": WARMUP_STEPS - 1, "warmup": 1, "active": steps, "repeat": 1}
        self._profiler = ProfileKwargs(schedule_option=schedule, on_trace_ready=self._write).build()
        self._profiler.start()
        if accelerator.device.type == "cuda":
            torch.cuda.memory._record_memory_history(max_entries=MEMORY_EVENTS)
            torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)

    def step(self) -> None:
        """Note that a step has ended."""
        if self._left:
            self._profiler.step()
            self._left -= 1

    def close(self) -> None:
        """End the trace with the run, perhaps before all the steps were traced."""
        if self._left:
            self._left = 0
            self._profiler.stop()

    def _write(self, profiler: torch.profiler.profile) -> None:
        rank = self.accelerator.process_index
        profiler.export_chrome_trace(str(self.folder / f"process-{rank}.json"))  # it reports its own failures
        if self.accelerator.is_main_process:
            say(f"{top_operators(profiler)}\ntraces, a file for each process: {self.folder}")

    def _out_of_memory(self, device: int, size: int, total: int, free: int) -> None:
        file = self.folder / f"memory-process-{self.accelerator.process_index}.pickle"
        torch.cuda.memory._dump_snapshot(str(file))
        say(
            f"out of memory on GPU {device}: the allocations are in {file}; open it at pytorch.org/memory_viz",
            every_process=True,
        )


def top_operators(profiler: torch.profiler.profile) -> str:
    """A table of the operators that took most of the device's time by themselves, or of the CPU's without a device."""
    # a CPU row includes the time of the kernels that it launched; these also have their own rows
    rows = [row for row in profiler.key_averages() if row.device_type == DeviceType.CPU]
    averages = [row for row in rows if not row.key.startswith("ProfilerStep")]
    times = [row.self_device_time_total for row in averages]  # microseconds
    if not any(times):
        times = [row.self_cpu_time_total for row in averages]
    whole = sum(times) or 1
    lines = [f"{'operator':<50} {'calls':>7} {'ms':>10} {'share':>7}"]
    by_time = sorted(zip(times, averages, strict=True), key=_time, reverse=True)
    for time, row in by_time[:TOP_OPERATORS]:
        lines.append(f"{row.key[:50]:<50} {row.count:>7} {time / 1e3:>10.1f} {100 * time / whole:>6.1f}%")
    return "\n".join(lines)


def _time(timed_row: tuple[float, Any]) -> float:
    return timed_row[0]
