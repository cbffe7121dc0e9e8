"""--trace-steps: the cost of each operator in some steps."""

from contextlib import ExitStack
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProfileKwargs

from runtime.console import say
from train_utils.monitoring.throughput import WARMUP_STEPS

TOP_OPERATORS = 12


class StepTrace:
    """Profiles `steps` steps after the warm-up; with 0 steps it does nothing.

    Each process writes `process-<n>.json` for chrome://tracing; the main process prints the operators that took most.
    """

    def __init__(self, accelerator: Accelerator, folder: Path, steps: int) -> None:
        self.accelerator = accelerator
        self.folder = folder
        self._running = ExitStack()
        self._profiler: torch.profiler.profile | None = None
        if steps:
            schedule = {"wait": WARMUP_STEPS - 1, "warmup": 1, "active": steps, "repeat": 1}
            handler = ProfileKwargs(schedule_option=schedule, on_trace_ready=self._write)
            self._profiler = self._running.enter_context(accelerator.profile(handler))

    def step(self) -> None:
        """Note that a step has ended."""
        if self._profiler is not None:
            self._profiler.step()

    def close(self) -> None:
        """End the trace with the run, perhaps before all the steps were traced."""
        self._profiler = None
        self._running.close()

    def _write(self, profiler: torch.profiler.profile) -> None:
        # Machines may not share the folder that the main process has made.
        self.folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.folder / f"process-{self.accelerator.process_index}.json"))
        if self.accelerator.is_main_process:
            device = "cpu" if self.accelerator.device.type == "cpu" else "device"
            table = profiler.key_averages().table(f"self_{device}_time_total", row_limit=TOP_OPERATORS)
            say(f"{table}\ntraces, a file for each process: {self.folder}")
