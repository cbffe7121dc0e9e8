"""The schedule of a run by steps or by the clock: learning rate, logging, evaluation, checkpoints, the end."""

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import psutil
from accelerate import Accelerator
from torch.optim import Optimizer

from runtime.distributed import on_main
from runtime.launch import launcher_words
from runtime.machine import ProcessorTimes, processor_times
from train_utils.optim import learning_rate
from train_utils.run_state import Reading, RunState, StepResult
from train_utils.settings.train_settings import TrainSettings

ENDLESS = 2**40  # steps that are offered to a run by the clock
WARMUP_SHARE = 20  # the learning rate rises in this part of the run
ENCODER_SHARE = 0.1  # a pretrained encoder's share of the learning rate
FINISH = 2000  # milliseconds for charts and the report, without their pictures, if no other program is busy
RECENT_STEPS = 5  # the longest of these says how long the next step may take
RECENT_TIME = 10_000  # milliseconds over which the wait for a processor is measured
FIRST_EVALUATION = 10  # at the latest this part of the time is over when the first evaluation begins
EVALUATION_PART = 10  # evaluations take at most one part in so many of the time since training began


def program_start() -> float:
    """When the program began, on the monotonic clock: this process, or the launcher that has started it.

    A launcher that has started the processes of a run again is older than these.
    """
    process = psutil.Process()
    if launcher_words() and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        process = process.parent() or process
    return time.monotonic() - (time.time() - process.create_time())


PROGRAM_START = program_start()


def milliseconds_since_start() -> int:
    """The time since the program began."""
    return int(1000 * (time.monotonic() - PROGRAM_START))


class Clock:
    """The progress of a run by time, `done` of `total` milliseconds, the same numbers on all processes.

    The main process's `reading` travels with the exchange of each step, so no process waits for it. `total` is the part
    of the run's minutes that is for training: the last evaluation, the last save and the report come after it. In a run
    without minutes nothing here does anything.

    Args:
        minutes: the length of the run; None if its steps are counted.
        minutes_used: what the run had used of them when its checkpoint was saved.
        report_share: how many times as long as an evaluation the report's pictures take.
        spaces_evaluations: whether evaluations wait until they keep to their part of the time.
    """

    def __init__(
        self,
        minutes: float | None = None,
        minutes_used: float = 0.0,
        *,
        report_share: float = 0.0,
        spaces_evaluations: bool = True,
    ) -> None:
        self.budget = int(60_000 * (minutes or 0))
        self.before = int(60_000 * minutes_used)
        self.report_share = report_share
        self.spaces_evaluations = spaces_evaluations
        self.done = 0
        self.total = self.budget
        self.affords_evaluation = True  # whether there is time for an evaluation that is not the last one
        self.is_over = False  # whether the next step would cross the end
        self._begin: int | None = None  # of the first step of this process
        self._sent = Reading(0, self.budget)  # the last reading
        self._evaluated = 0  # milliseconds of all evaluations
        # milliseconds of each evaluation and save, without waiting for a processor that other programs use
        self._evaluations: list[int] = []
        self._saves: list[int] = []
        self._last: StepResult | None = None  # the last step, unless there was a pause behind it
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._slowness = 1.0  # how many times as long work takes as it would if no other program were busy
        self._measured = ProcessorTimes(0, 0)  # up to where the slowness is measured

    def now(self) -> int:
        """Milliseconds that the run has used, on this process's own clock."""
        return self.before + milliseconds_since_start()

    @property
    def measures_save(self) -> bool:
        """Whether a save should be waited for, since nobody knows yet how long one takes."""
        return bool(self.budget) and not self._saves

    def reading(self) -> Reading:
        """What the clock says as a step begins; the main process's is for all."""
        if not self.budget:
            return Reading()
        self._measure_slowness()
        now = self.now()
        end = (1 + self.report_share) * self._evaluation + max(self._saves, default=0) + FINISH
        total = self.budget - int(self._slowness * end)
        # the share that is done never falls, even if the evaluations become faster
        if self._sent.now:
            total = min(total, now * self._sent.total // self._sent.now)
        self._sent = Reading(now, max(1, total), self._affords_evaluation(now, total))
        return self._sent

    def note(self, results: Iterable[StepResult], step: int) -> None:
        """Take over the readings of steps, after `step` steps; all processes have the same results."""
        if not self.budget:
            return
        for result in results:
            if self._last is not None:
                passed = result.reading.now - self._last.reading.now
                self._steps.append(passed / (result.step - self._last.step))
            self._last = result
            # the steps after this one are made or queued, and the next one comes behind them
            self._take(result.reading, step - result.step + 2)

    def _take(self, reading: Reading, steps_ahead: int) -> None:
        """Take over a reading; `steps_ahead` are those from then on to the end of the next step."""
        self.done, self.total, self.affords_evaluation = reading
        if self._begin is None:
            self._begin = self.done
        self.is_over = self.done + steps_ahead * self._longest_step > self.total

    @contextmanager
    def evaluating(self, accelerator: Accelerator) -> Iterator[None]:
        """A context for an evaluation, which is the last one if no step fits behind it; every process must enter it."""
        begin = self.now()
        was_over = self.is_over
        with self._measuring(self._evaluations):
            yield
        self._evaluated += self.now() - begin
        if self.budget:
            self._take(on_main(accelerator, self.reading), 1)
            self.is_over |= was_over  # even if it was faster than expected: another step would need another evaluation

    def saving(self, state: RunState) -> AbstractContextManager[None]:
        """A context for a save, which notes the time in the state."""
        state.elapsed = self.now() if self.budget else 0
        return self._measuring(self._saves)

    @contextmanager
    def _measuring(self, durations: list[int]) -> Iterator[None]:
        begin = self.now()
        waited = processor_times().waiting
        yield
        durations.append(self.now() - begin - (processor_times().waiting - waited))
        self._last = None

    def needs_evaluation(self, epochs: float) -> bool:
        """Whether an epoch or a tenth of the time has passed without any evaluation, whose length nobody knows yet."""
        begin = self._begin or 0
        is_late = epochs >= 1 or FIRST_EVALUATION * (self.done - begin) >= self.total - begin
        return bool(self.budget) and not self._evaluations and is_late

    def _affords_evaluation(self, now: int, total: int) -> bool:
        """Whether all evaluations keep to their part of the time if one follows this step, and a step fits behind it.

        The first one is always made.
        """
        if not self._evaluations or self._begin is None:
            return True
        if now + 2 * self._longest_step + self._slowness * self._evaluation > total:
            return False  # the last evaluation is near
        with_another = self._evaluated + self._evaluated / len(self._evaluations)
        return not self.spaces_evaluations or EVALUATION_PART * with_another <= now - self._begin

    @property
    def _evaluation(self) -> int:
        """Milliseconds of the longest evaluation, without the first one, which warms up, if there are others."""
        return max(self._evaluations[1:] or self._evaluations, default=0)

    @property
    def _longest_step(self) -> float:
        return max(self._steps, default=0.0)

    def _measure_slowness(self) -> None:
        """Compare the time that this process has worked with the time that it has waited for a processor."""
        times = processor_times()
        running = times.running - self._measured.running
        waiting = times.waiting - self._measured.waiting
        if running + waiting >= RECENT_TIME:
            self._slowness = (running + waiting) / max(1, running)
            self._measured = times


@dataclass(frozen=True)
class Schedule:
    """A run as a function of its progress: of its step, or of the time.

    Args:
        total_steps: 0 if the clock alone decides.
    """

    args: TrainSettings
    steps_per_epoch: int
    total_steps: int
    clock: Clock

    def set_learning_rate(self, optimizer: Optimizer, step: int) -> float:
        """Give the optimizer the learning rate of step `step` (from 0), and return it."""
        rate = self._learning_rate(step)
        encoder_share = self.args.encoder_lr_factor
        if encoder_share is None:
            encoder_share = 1.0 if self.args.encoder_weights == "random" else ENCODER_SHARE
        for group in optimizer.param_groups:
            group["lr"] = rate * (encoder_share if group["of_encoder"] else 1)
        return rate

    def _learning_rate(self, step: int) -> float:
        args, clock = self.args, self.clock
        warmup_steps = args.warmup_steps
        if warmup_steps is None:
            warmup_steps = self.total_steps // WARMUP_SHARE
        by_step = learning_rate(step, self.total_steps, args.learning_rate, warmup_steps, args.schedule)
        if not clock.budget or step < warmup_steps:
            return by_step
        warmup = 0 if warmup_steps else clock.total // WARMUP_SHARE
        by_time = learning_rate(clock.done, clock.total, args.learning_rate, warmup, args.schedule)
        if self.total_steps:
            return min(by_step, by_time)  # whichever comes first
        return by_time

    def remaining_steps(self, step: int) -> range:
        """The steps that are still to be made after `step`; in a run by the clock more than it will make."""
        return range(step, self.total_steps or ENDLESS)

    def epoch(self, step: int) -> float:
        """The number of epochs in `step` steps."""
        return step / self.steps_per_epoch

    def is_last(self, step: int) -> bool:
        """Whether nothing is left to do after `step` steps."""
        return self.clock.is_over or 0 < self.total_steps <= step

    def is_over(self, state: RunState) -> bool:
        """Whether a run with this state has made all its steps, or has run out of patience."""
        return self.is_last(state.step) or self.is_out_of_patience(state)

    def is_out_of_patience(self, state: RunState) -> bool:
        """Whether --patience evaluations in a row were no better than the best one."""
        return self.args.patience is not None and state.evaluations_since_best >= self.args.patience

    def is_log_step(self, step: int) -> bool:
        """Whether training is logged after `step` steps; in a run by the clock, any evaluation may be the last."""
        may_end = bool(self.clock.budget) and self.is_evaluation_step(step)
        return may_end or self._is_due(step, self.args.log_every)

    def is_evaluation_step(self, step: int) -> bool:
        """Whether the model is evaluated after `step` steps."""
        if self.is_last(step) or self.clock.needs_evaluation(self.epoch(step)):
            return True
        return self._is_due(step, self.args.eval_every) and self.clock.affords_evaluation

    def is_checkpoint_step(self, step: int) -> bool:
        """Whether a checkpoint is due after `step` steps."""
        return self._is_due(step, self.args.checkpoint_every)

    def needs_results(self, step: int) -> bool:
        """Whether all results must be known after `step` steps, since the run logs, evaluates or saves there."""
        return self.is_log_step(step) or self.is_evaluation_step(step) or self.is_checkpoint_step(step)

    def _is_due(self, step: int, interval: int | None) -> bool:
        """Whether a multiple of the interval, or of an epoch if it is 0, or the last step is reached."""
        return step % (interval or self.steps_per_epoch) == 0 or self.is_last(step)
