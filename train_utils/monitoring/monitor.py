"""Everything that is measured and shown while training: losses, speed, traces, the log and the bar."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from runtime.console import progress_bar, say
from tasks.task import Task
from train_utils.evaluation import Evaluation
from train_utils.monitoring.profiler import StepTrace
from train_utils.monitoring.throughput import LossWindow, Meter
from train_utils.monitoring.tracking import RunLog
from train_utils.nan_guard import StepResult
from train_utils.run_state import RunState
from train_utils.schedule import Schedule

SHOWN_PROBLEMS = 20  # bad samples, by name


class Monitor:
    """What a run measures at each step, and where it goes: metrics.jsonl, the tracker, the bar on the terminal.

    Args:
        model: as it trains, wrapped, not compiled.
        flops: of training on one image.
        task: says what evaluations are compared by.
        run_log: writes the records.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        flops: float,
        task: Task,
        schedule: Schedule,
        state: RunState,
        run_log: RunLog,
    ) -> None:
        settings = run_log.settings
        self.accelerator, self.schedule, self.state, self.run_log = accelerator, schedule, state, run_log
        self.compared_by = task.compared_by
        self.num_workers, self.cached = settings.num_workers, settings.flags["cache"]
        self.meter = Meter(accelerator, model, flops, str(settings.profile["mixed_precision"]))
        self.window = LossWindow(**state.window)
        self._last: StepResult | None = None  # of the steps whose result is known
        self.trace = StepTrace(accelerator, run_log.output_dir / "traces", settings.flags["trace_steps"])
        self.problems: set[str] = set()  # of samples that were left out
        self.bar = progress_bar(schedule.total_steps, "training", "step", initial=state.step)
        self._brief = ""
        self._has_named_bottleneck = False

    def data_ready(self, batches: list[dict[str, Any]]) -> None:
        """The next step's micro-batches are here; what could not be read is taken out of them, and named at the end."""
        self.problems.update(problem for batch in batches for problem in batch.pop("problems"))
        self.meter.data_ready()

    def communicating(self) -> AbstractContextManager[None]:
        """Around the wait for the count that all processes share."""
        return self.meter.communicating()

    def paused(self) -> AbstractContextManager[None]:
        """Around what is not training: evaluations and saves."""
        return self.meter.paused()

    def end_step(self, images: float) -> None:
        """The step is queued, with `images` over all processes."""
        self.meter.end_step(images)
        self.trace.step()

    def add(self, results: Iterable[StepResult]) -> None:
        """What steps came to, once it is known."""
        for result in results:
            self.window.add(result)
            self._last = result

    def log_training(self, learning_rate: float) -> None:
        """A record of the steps since the last one, whose results must be known; every process must call it."""
        assert self._last is not None and self._last.step == self.state.step
        record = {
            "train/loss": self.window.mean(),
            "train/lr": learning_rate,
            "train/grad_norm": self._last.grad_norm,
            "train/skipped_steps": self.state.skipped,
            **self.meter.summary(),
        }
        self._write(record)
        self._brief = f"epoch {self.schedule.epoch(self.state.step):.1f}, {brief(record)}"
        if not self._has_named_bottleneck and (bottleneck := self.bottleneck()):
            self._has_named_bottleneck = True
            say(bottleneck)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """A record of the scores."""
        self._write(evaluation.record())

    def _write(self, record: dict[str, float | None]) -> None:
        self.run_log.scalars(self.state.step, self.schedule.epoch(self.state.step), record)

    def show(self) -> None:
        """Move the bar by one step."""
        best = f", best {self.compared_by} {self.state.best:.3f}" if self.state.best >= 0 else ""
        self.bar.set_postfix_str(self._brief + best, refresh=False)
        self.bar.update()

    def bottleneck(self) -> str | None:
        """A sentence on what slows the run down, as `Meter.bottleneck`."""
        return self.meter.bottleneck(self.num_workers, self.cached)

    def close(self) -> None:
        """The steps are over; name the samples that any process left out. Every process must call it."""
        self.bar.close()
        self.trace.close()
        if self.schedule.is_out_of_patience(self.state) and not self.schedule.is_last(self.state.step):
            say(
                f"no better {self.compared_by} in {self.schedule.patience} evaluations,"
                f" stopping at step {self.state.step}"
            )
        everywhere = sorted(set(gather_object(sorted(self.problems))))
        if everywhere:
            listed = "; ".join(everywhere[:SHOWN_PROBLEMS])
            say(f"{len(everywhere)} bad samples were skipped in training: {listed}")


def brief(record: dict[str, float | None]) -> str:
    """Loss, speed and wait for data, for a progress bar."""
    parts = [f"loss {record['train/loss']:.3f}" if record["train/loss"] is not None else "no loss"]
    if "perf/images_per_second" in record:
        parts.append(f"{record['perf/images_per_second']:.1f} images/s")
        parts.append(f"{record['perf/data_wait_percent']:.0f}% waiting for data")
    return ", ".join(parts)
