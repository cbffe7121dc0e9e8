"""What a run says while it trains: metrics.jsonl, the tracker, the bar on the terminal, its speed, a trace of steps."""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import ProfileKwargs, gather_object

from data_utils.loading.dataset import TrainingBatch
from runtime.console import counted, is_first_process, progress_bar, say, say_error
from runtime.errors import SettingsError, WriteError, one_line
from runtime.files import replace_file, tolerate_write_errors
from runtime.redact import printable
from train_utils.evaluation import Evaluation
from train_utils.metrics_log import MetricsFile
from train_utils.run_state import LossWindow, RunState, StepResult
from train_utils.schedule import Schedule
from train_utils.settings.record import RunSettings

WARMUP_STEPS = 3  # steps that are not measured: allocators, kernel choice and worker start-up slow them down
ENOUGH_STEPS = 20  # steps that are measured before a bottleneck is named
MUCH_WAITING = 20  # percent of the time
PROBLEMS_IN_MESSAGE = 20  # the most problems of samples that a message lists
TOP_OPERATORS = 12  # that a trace prints
WITHOUT_TRACKER = "training goes on without it, metrics.jsonl has the same numbers"

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
        self._over: list[tuple[Mark, Mark, Mark, float]] = []  # steps whose events may not have happened yet
        # steps and their images over all processes; seconds of the steps, and of their waits for data
        self._window = np.zeros(4)  # since the last summary
        self._total = np.zeros(4)

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
        end = self._now()
        self._steps_seen += 1
        if self._steps_seen > WARMUP_STEPS:
            self._over.append((self._begin, self._data, end, images))
        self._begin = end
        self._add_up()

    def summary(self) -> dict[str, float]:
        """Means since the last call, of the process that waits longest for its data; every process must call it.

        `perf/images_per_second`, `perf/data_wait_percent`, and on CUDA `perf/peak_memory_gb`.
        """
        self._add_up()
        memory = torch.cuda.max_memory_allocated() / 1e9 if self._on_cuda else 0.0
        gathered = gather_object([(self._window.tolist(), memory)])
        self._window = np.zeros(4)
        # the others wait for a process that waits for data
        window = max((window for window, _ in gathered), key=lambda window: window[-1])
        self._total += window
        _, images, seconds, waited = window
        values: dict[str, float] = {}
        if seconds > 0:
            values["perf/images_per_second"] = images / seconds
            values["perf/data_wait_percent"] = 100 * waited / seconds
        if self._on_cuda:
            values["perf/peak_memory_gb"] = max(memory for _, memory in gathered)
        return values

    def bottleneck(self, workers: int, cached: bool) -> str | None:
        """A sentence on a run that waits for its data, with advice; None if it does not wait much."""
        steps, _, seconds, waited = self._total.tolist()
        if steps < ENOUGH_STEPS or 100 * waited < MUCH_WAITING * seconds:
            return None
        remedy = f"raise --num-workers from {workers}"
        if not cached:
            remedy += ", or give --cache"
        return f"training waited for data {100 * waited / seconds:.0f}% of the time: {remedy}"

    def _add_up(self) -> None:
        """Add up the steps that the device has finished: reading their events does not wait."""
        while self._over and _is_past(self._over[0][2]):
            begin, data, end, images = self._over.pop(0)
            self._window += (1, images, _seconds(begin, end), _seconds(begin, data))

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


def available_tracker(name: str) -> str:
    """The tracker's name, or `none` and a warning if it is not installed; SettingsError for an unknown name."""
    if name == "none" or name in map(str, get_available_trackers()):
        return name
    if name not in LOGGER_TYPE_TO_CLASS:
        tracker_list = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
        raise SettingsError(f"--tracker {name} is unknown; expected none or one of {tracker_list}")
    if is_first_process():
        say_error(f"tracker {name} is not installed; {WITHOUT_TRACKER}")
    return "none"


class Tracker:
    """A tracker of accelerate; if it fails, at the start or later, a line is printed and training goes on without it.

    Args:
        name: a name that accelerate knows, or `none`.
        settings: the content of run.json.
        step: the step at which the run starts; TensorBoard drops later records of a killed run.
    """

    def __init__(self, accelerator: Accelerator, name: str, settings: dict[str, Any], step: int) -> None:
        self.accelerator = accelerator
        self.name = name if name in map(str, accelerator.log_with) else "none"
        with self._errors_reported():
            if self.name == "tensorboard":
                options = {"purge_step": step + 1} if step else {}
                # as hyper-parameters, TensorBoard would show the settings as a second run, named by the time
                accelerator.init_trackers(name, init_kwargs={name: options})
                accelerator.log({"settings": f"```\n{json.dumps(settings, indent=2)}\n```"}, step=step)
            elif self.name != "none":
                accelerator.init_trackers("unet-accelerate", _flat(settings))

    def scalars(self, step: int, values: dict[str, float | None]) -> None:
        """Log the values that are not None."""
        if self.name != "none":
            numbers = {name: value for name, value in values.items() if value is not None}
            with self._errors_reported():
                self.accelerator.log(numbers, step=step)

    @property
    def takes_pictures(self) -> bool:
        """Whether the tracker of this process shows pictures."""
        if not self.accelerator.is_main_process or self.name == "none":
            return False
        return hasattr(self.accelerator.get_tracker(self.name), "log_images")

    def pictures(self, step: int, pictures: dict[str, np.ndarray]) -> None:
        """Show (H, W, 3) uint8 pictures by tag, if the tracker `takes_pictures`."""
        if not self.takes_pictures:
            return
        options = {"dataformats": "NHWC"} if self.name == "tensorboard" else {}
        with self._errors_reported():
            tagged = {printable(tag): picture[None] for tag, picture in pictures.items()}
            self.accelerator.get_tracker(self.name).log_images(tagged, step=step, **options)

    def finish(self) -> None:
        """End the log of the run; every process must call it."""
        with self._errors_reported():
            for tracker in self.accelerator.trackers:
                tracker.finish()
        self.accelerator.trackers = []
        self.accelerator.end_training()

    @contextmanager
    def _errors_reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a tracker may raise anything
            reason = f"{type(error).__name__}: {one_line(error, limit=200)}"
            say(f"tracker {self.name} failed ({reason}); {WITHOUT_TRACKER}")
            self.name = "none"
            self.accelerator.trackers = []


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, int | float | str | bool]:
    """Nested settings as plain values, whose names have a dot for each level: trackers take no others."""
    flat: dict[str, int | float | str | bool] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            if not isinstance(value, int | float | str | bool):
                value = str(value)
            flat[prefix + key] = value
    return flat


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
        self.bar.update(clock.done // 1000 - self.bar.n if clock.budget else 1)

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
