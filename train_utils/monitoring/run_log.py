"""What a run says while it trains: metrics.jsonl, the tracker, the bar on the terminal, a trace of some steps."""

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProfileKwargs, gather_object

from data_utils.loading.dataset import TrainingBatch
from runtime.console import counted, progress_bar, say
from runtime.errors import WriteError
from runtime.files import replace_file, tolerate_write_errors
from train_utils.evaluation import Evaluation
from train_utils.metrics_log import MetricsFile
from train_utils.monitoring.meter import WARMUP_STEPS, Meter
from train_utils.monitoring.tracker import Tracker
from train_utils.run_state import LossWindow, RunState, StepResult
from train_utils.schedule import Schedule
from train_utils.settings.record import RunSettings

PROBLEMS_IN_MESSAGE = 20  # the most problems of samples that a message lists
TOP_OPERATORS = 12  # that a trace prints


@dataclass
class RunLog:
    """The log of a run. Every process makes the same calls, and the main process writes.

    Args:
        output_dir: the folder of the run, which gets run.json, metrics.jsonl and, with --trace-steps, traces/.
        settings: the resolved settings of the run.
        schedule: says at which steps there is a record.
        state: where the run stands; its window of losses is filled here.
        compared_by: the name of the score that evaluations are compared by.
    """

    accelerator: Accelerator
    output_dir: Path
    settings: RunSettings
    schedule: Schedule
    state: RunState
    compared_by: str

    def __post_init__(self) -> None:
        settings, state, clock = self.settings, self.state, self.schedule.clock
        self.problems: set[str] = set()  # why samples were left out
        self._file: MetricsFile | None = None
        if self.accelerator.is_main_process:
            try:
                self._write_settings(settings)
                self._file = MetricsFile(self.output_dir / "metrics.jsonl", state.step)
            except OSError as error:
                raise WriteError(f"--output-dir {self.output_dir} cannot be written to: {error}") from error
        self.tracker = Tracker(self.accelerator, settings.flags["tracker"], asdict(settings), state.step)
        self.meter = Meter(self.accelerator)
        self._trace = ExitStack()
        self._profiler: torch.profiler.profile | None = None
        if settings.flags["trace_steps"]:
            self._profiler = self._trace.enter_context(self._profile(settings.flags["trace_steps"]))
        self._last: StepResult | None = None  # the last step whose result is known
        self._has_named_bottleneck = False
        if clock.budget:
            self.bar = progress_bar(clock.budget // 1000, "training", "s")
        else:
            self.bar = progress_bar(self.schedule.total_steps, "training", "step", initial=state.step)

    def data_ready(self, batches: list[TrainingBatch]) -> None:
        """Note that the next step's micro-batches are here, and which problems their samples had."""
        for batch in batches:
            self.problems.update(batch["problems"])
        self.meter.data_ready()

    def pause(self) -> AbstractContextManager[None]:
        """A context for evaluations and saves, whose time does not count as training."""
        return self.meter.pause()

    def end_step(self, images: float) -> None:
        """Note that a step is queued, with `images` images over all processes."""
        self.meter.end_step(images)
        if self._profiler is not None:
            self._profiler.step()

    def step(self, results: Iterable[StepResult], learning_rate: float) -> None:
        """Take in the results of steps that are known by now, write a record where it is due, and move the bar.

        Where a record is due, the results of all steps must be known.
        """
        window = self.state.window
        for result in results:
            if result.is_made:
                window.total += result.loss
                window.steps += 1
            self._last = result
        if self.schedule.is_log_step(self.state.step):
            self._write_training(learning_rate)
        clock = self.schedule.clock
        if clock.budget:
            self.bar.update(clock.done // 1000 - self.bar.n)
        else:
            self.bar.update(1)

    def _write_training(self, learning_rate: float) -> None:
        """Write a record of the steps since the last one."""
        assert self._last is not None
        assert self._last.step == self.state.step
        window = self.state.window
        self.state.window = LossWindow()
        record = {
            "train/loss": window.total / window.steps if window.steps else None,
            "train/lr": learning_rate,
            "train/grad_norm": self._last.grad_norm,
            "train/skipped_steps": self.state.skipped,
            **self.meter.summary(),
        }
        self._write(record)
        self.bar.set_postfix_str(self._brief(record), refresh=False)
        bottleneck = self.bottleneck()
        if bottleneck and not self._has_named_bottleneck:
            self._has_named_bottleneck = True
            say(bottleneck)

    def _brief(self, record: dict[str, float | None]) -> str:
        """Epoch, loss, speed, wait for data and best score, for the bar."""
        loss = record["train/loss"]
        parts = [f"epoch {self.schedule.epoch(self.state.step):.1f}", "no loss" if loss is None else f"loss {loss:.3f}"]
        if "perf/images_per_second" in record:
            parts.append(f"{record['perf/images_per_second']:.1f} images/s")
            parts.append(f"{record['perf/data_wait_percent']:.0f}% waiting for data")
        if self.state.has_best:
            parts.append(f"best {self.compared_by} {self.state.best:.3f}")
        return ", ".join(parts)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write a record of the scores."""
        self._write(evaluation.record())

    def _write(self, record: dict[str, float | None]) -> None:
        if self._file is not None:
            self._file.write(self.state.step, self.schedule.epoch(self.state.step), record)
            self.tracker.scalars(self.state.step, record)

    def bottleneck(self) -> str | None:
        """A sentence on a run that waits for its data; None for another."""
        return self.meter.bottleneck(self.settings.num_workers, self.settings.flags["cache"])

    def close(self) -> None:
        """End the measurement after the last step, and name the samples that any process left out."""
        self.bar.close()
        self._profiler = None
        self._trace.close()  # perhaps before all the steps were traced
        if self.schedule.is_out_of_patience(self.state) and not self.schedule.is_last(self.state.step):
            evaluations = counted(self.state.evaluations_since_best, "evaluation")
            say(f"no better {self.compared_by} in {evaluations}, stopping at step {self.state.step}")
        problems = sorted(set(gather_object(sorted(self.problems))))
        if problems:
            first_problems = "; ".join(problems[:PROBLEMS_IN_MESSAGE])
            say(f"{counted(len(problems), 'bad sample was', 'bad samples were')} skipped in training: {first_problems}")

    def record_length(self) -> None:
        """Write into run.json how many steps a run by the clock has made, for --like; call it on the main process."""
        with tolerate_write_errors("run.json"):
            self._write_settings(replace(self.settings, total_steps=self.state.step))

    def is_saved(self) -> bool:
        """Whether all records are in metrics.jsonl."""
        return self._file is None or self._file.is_saved()

    def _write_settings(self, settings: RunSettings) -> None:
        with replace_file(self.output_dir / "run.json") as file:
            file.write((json.dumps(asdict(settings), indent=2) + "\n").encode())

    def _profile(self, steps: int) -> AbstractContextManager[torch.profiler.profile]:
        """A profiler of `steps` steps after the warm-up."""
        schedule = {"wait": WARMUP_STEPS - 1, "warmup": 1, "active": steps, "repeat": 1}
        return self.accelerator.profile(ProfileKwargs(schedule_option=schedule, on_trace_ready=self._write_trace))

    def _write_trace(self, profiler: torch.profiler.profile) -> None:
        """Write traces/process-<n>.json for chrome://tracing; the main process prints the operators that took most."""
        folder = self.output_dir / "traces"
        folder.mkdir(parents=True, exist_ok=True)  # machines may not share the folder that the main process has made
        profiler.export_chrome_trace(str(folder / f"process-{self.accelerator.process_index}.json"))
        if self.accelerator.is_main_process:
            device = "cpu" if self.accelerator.device.type == "cpu" else "device"
            table = profiler.key_averages().table(f"self_{device}_time_total", row_limit=TOP_OPERATORS)
            say(f"{table}\ntraces, a file for each process: {folder}")
