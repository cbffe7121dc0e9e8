"""Everything that is measured and shown while training: losses, speed, traces, the log and the bar."""

from collections.abc import Iterable
from contextlib import AbstractContextManager

from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from data_utils.loading.dataset import TrainingBatch
from runtime.console import counted, progress_bar, say
from tasks.task import Task
from train_utils.evaluation import Evaluation
from train_utils.monitoring.run_log import RunLog
from train_utils.monitoring.step_trace import StepTrace
from train_utils.monitoring.throughput import Meter
from train_utils.run_state import RunState
from train_utils.schedule import Schedule
from train_utils.step_result import StepResult

PROBLEMS_IN_MESSAGE = 20  # the most problems of samples that a message lists


class Monitor:
    """Measures each step of a run, and shows the numbers in metrics.jsonl, the tracker and the bar on the terminal.

    Args:
        model: the model that trains, wrapped, not compiled.
        run_log: writes the records.
        flops: FLOPs of training on one image.
        task: the task, which names the score that evaluations are compared by.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        schedule: Schedule,
        state: RunState,
        run_log: RunLog,
        *,
        flops: float,
        task: Task,
    ) -> None:
        settings = run_log.settings
        self.accelerator = accelerator
        self.schedule = schedule
        self.state = state
        self.run_log = run_log
        self.compared_by = task.compared_by
        self.num_workers = settings.num_workers
        self.cached = settings.flags["cache"]
        self.meter = Meter(accelerator, model, flops, str(settings.profile["mixed_precision"]))
        self._last: StepResult | None = None  # the last step whose result is known
        self.trace = StepTrace(accelerator, run_log.output_dir / "traces", settings.flags["trace_steps"])
        self.problems: set[str] = set()  # why samples were left out
        clock = schedule.clock
        if clock.budget:
            self.bar = progress_bar(clock.budget // 1000, "training", "s")
        else:
            self.bar = progress_bar(schedule.total_steps, "training", "step", initial=state.step)
        self._brief = ""
        self._has_named_bottleneck = False

    def data_ready(self, batches: list[TrainingBatch]) -> None:
        """Note that the next step's micro-batches are here, and which problems their samples had.

        `close` names these samples.
        """
        for batch in batches:
            self.problems.update(batch["problems"])
        self.meter.data_ready()

    def communication(self) -> AbstractContextManager[None]:
        """A context for the wait for the count that all processes share."""
        return self.meter.communication()

    def pause(self) -> AbstractContextManager[None]:
        """A context for evaluations and saves, whose time does not count as training."""
        return self.meter.pause()

    def end_step(self, images: float) -> None:
        """Note that a step is queued, with `images` images over all processes."""
        self.meter.end_step(images)
        self.trace.step()

    def add(self, results: Iterable[StepResult]) -> None:
        """Take in the results of steps, once they are known."""
        window = self.state.window
        for result in results:
            if result.is_made:
                window["total"] += result.loss
                window["steps"] += 1
            self._last = result

    def log_training(self, learning_rate: float) -> None:
        """Write a record of the steps since the last one, whose results must be known; every process must call it."""
        assert self._last is not None
        assert self._last.step == self.state.step
        record = {
            "train/loss": self._mean_loss(),
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

    def _mean_loss(self) -> float | None:
        """The mean loss of the steps since the last call; None if no step was made."""
        window = self.state.window
        self.state.window = {"total": 0.0, "steps": 0}
        return window["total"] / window["steps"] if window["steps"] else None

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Write a record of the scores."""
        self._write(evaluation.record())

    def _write(self, record: dict[str, float | None]) -> None:
        self.run_log.scalars(self.state.step, self.schedule.epoch(self.state.step), record)

    def show(self) -> None:
        """Move the bar by one step, or to the time."""
        text = self._brief
        if self.state.best >= 0:
            text += f", best {self.compared_by} {self.state.best:.3f}"
        self.bar.set_postfix_str(text, refresh=False)
        clock = self.schedule.clock
        self.bar.update(clock.done // 1000 - self.bar.n if clock.budget else 1)

    def bottleneck(self) -> str | None:
        """The sentence of `Meter.bottleneck` on what slows the run down."""
        return self.meter.bottleneck(self.num_workers, self.cached)

    def close(self) -> None:
        """End the measurement after the last step, and name the samples that any process left out.

        Every process must call it.
        """
        self.bar.close()
        self.trace.close()
        if self.schedule.is_out_of_patience(self.state) and not self.schedule.is_last(self.state.step):
            say(
                f"no better {self.compared_by} in {counted(self.state.evaluations_since_best, 'evaluation')},"
                f" stopping at step {self.state.step}"
            )
        problems = sorted(set(gather_object(sorted(self.problems))))
        if problems:
            first_problems = "; ".join(problems[:PROBLEMS_IN_MESSAGE])
            say(f"{counted(len(problems), 'bad sample was', 'bad samples were')} skipped in training: {first_problems}")


def brief(record: dict[str, float | None]) -> str:
    """Loss, speed and wait for data, for a progress bar."""
    loss = record["train/loss"]
    parts = ["no loss" if loss is None else f"loss {loss:.3f}"]
    if "perf/images_per_second" in record:
        parts.append(f"{record['perf/images_per_second']:.1f} images/s")
        parts.append(f"{record['perf/data_wait_percent']:.0f}% waiting for data")
    return ", ".join(parts)
