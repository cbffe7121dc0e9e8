"""The schedule of a run by steps or by the clock: learning rate, logging, evaluation, checkpoints, the end."""

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import psutil
from accelerate import Accelerator
from torch.optim import Optimizer

from runtime.distributed import on_main
from runtime.launch import launcher_words
from runtime.machine import IdleCores
from train_utils.optim import learning_rate
from train_utils.run_state import Progress, RunState, StepResult
from train_utils.settings.train_settings import TrainSettings

ENDLESS = 2**40  # steps that are offered to a run by the clock
PARTS = 10**6  # of the time, for the learning rate
WARMUP_SHARE = 20  # the learning rate rises in this part of the run
ENCODER_SHARE = 0.1  # a pretrained encoder's share of the learning rate
RESERVE = 1.25  # the last evaluation, save and pictures may take so many times as long as those before
FINISH = 2000  # milliseconds for charts and the report, without their pictures
RECENT_STEPS = 5  # the longest of these says how long the next step may take
FIRST_EVALUATION = 10  # at the latest this part of the time, or of the steps, is over when the first evaluation begins
SETTLED = 60_000  # milliseconds of training after which it may begin earlier: a network of seconds finds all sorts
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
    """The progress of a run by time, the same on all processes.

    The main process decides: what it says travels with the exchange of each step, so no process waits for it. The last
    evaluation, the last save and the report come after the part of the run's minutes that is for training. In a run
    without minutes nothing here does anything.

    Args:
        minutes: the length of the run; None if its steps are counted.
        minutes_used: what the run had used of them when its checkpoint was saved.
        report_share: how many times as long as an evaluation the report's pictures take.
        spaces_evaluations: whether evaluations wait until they keep to their part of the time.
        cores: those of a run on the CPU, which other programs slow down; None on other devices.

    Attributes:
        progress: what the main process has said last.
    """

    def __init__(
        self,
        minutes: float | None = None,
        minutes_used: float = 0.0,
        *,
        report_share: float = 0.0,
        spaces_evaluations: bool = True,
        cores: IdleCores | None = None,
    ) -> None:
        self.budget = int(60_000 * (minutes or 0))
        self.before = int(60_000 * minutes_used)
        self.report_share = report_share
        self.spaces_evaluations = spaces_evaluations
        self.cores = cores
        self.progress = Progress()
        self._first_share: float | None = None  # the share of the time that was over when training began here
        self._largest_share = 0.0  # of those that this process has said
        self._evaluations: list[int] = []  # milliseconds of each
        self._saves: list[int] = []
        self._step_began: int | None = None  # milliseconds; None after a pause, which is no part of a step
        self._steps: deque[int] = deque(maxlen=RECENT_STEPS)

    def now(self) -> int:
        """Milliseconds that the run has used, on this process's own clock."""
        return self.before + milliseconds_since_start()

    @property
    def measures_save(self) -> bool:
        """Whether a save should be waited for, since nobody knows yet how long one takes."""
        return bool(self.budget) and not self._saves

    def reading(self, steps_ahead: int) -> Progress:
        """The progress now, as a step begins or after an evaluation; the main process's is for all.

        Args:
            steps_ahead: the steps from now to the end of the first one that can still be left out.
        """
        if not self.budget:
            return Progress()
        now = self.now()
        if self._step_began is not None:
            self._steps.append(now - self._step_began)
        self._step_began = now
        end = (1 + self.report_share) * self._longest_evaluation + max(self._saves, default=0)
        total = max(1.0, self.budget - RESERVE * end - FINISH)
        self._largest_share = max(self._largest_share, now / total)  # even if the evaluations become faster
        step = max(self._steps, default=0)
        is_over = now + steps_ahead * step > total
        return Progress(self._largest_share, is_over, self._affords_evaluation(now, step, total))

    def note(self, results: Sequence[StepResult]) -> None:
        """Take over the progress that came with steps; all processes have the same results."""
        if self.budget and self.cores is not None:
            self.cores.use()
        if results:
            self.progress = results[-1].progress
            if self._first_share is None:
                self._first_share = self.progress.share

    @contextmanager
    def evaluating(self, accelerator: Accelerator) -> Iterator[None]:
        """A context for an evaluation, which is the last one if no step fits behind it; every process must enter it."""
        was_over = self.progress.is_over
        with self._measuring(self._evaluations):
            yield
        if self.budget:
            self.progress = on_main(accelerator, lambda: self.reading(steps_ahead=1))
            if was_over:  # even if it was faster than expected: another step would need another evaluation
                self.progress = self.progress._replace(is_over=True)

    def saving(self, state: RunState) -> AbstractContextManager[None]:
        """A context for a save, which notes the time in the state."""
        state.elapsed = self.now() if self.budget else 0
        return self._measuring(self._saves)

    @contextmanager
    def _measuring(self, durations: list[int]) -> Iterator[None]:
        begin = self.now()
        yield
        durations.append(self.now() - begin)
        self._step_began = None

    def needs_evaluation(self, steps_share: float = 0.0) -> bool:
        """Whether a tenth of the time or the steps is over without any evaluation, whose length nobody knows yet."""
        begin = self._first_share or 0.0
        is_late = FIRST_EVALUATION * (self.progress.share - begin) >= 1 - begin or FIRST_EVALUATION * steps_share >= 1
        return bool(self.budget) and not self._evaluations and is_late

    def _affords_evaluation(self, now: int, step: int, total: float) -> bool:
        """Whether evaluations keep to their part of the time if one follows this step, and a step fits behind it."""
        trained = now - (self._first_share or 0.0) * total
        if not self._evaluations:
            return not self.spaces_evaluations or trained >= SETTLED
        if now + 2 * step + self._longest_evaluation > total:
            return False  # the last evaluation is near
        with_another = sum(self._evaluations) * (1 + 1 / len(self._evaluations))
        return not self.spaces_evaluations or EVALUATION_PART * with_another <= trained

    @property
    def _longest_evaluation(self) -> int:
        """Milliseconds of the longest evaluation, without the first one, which warms up, if there are others."""
        return max(self._evaluations[1:] or self._evaluations, default=0)


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

    def length_flag(self, step: int) -> str:
        """The flag that makes a run longer which has ended after `step` steps."""
        if self.args.max_steps:
            return "--max-steps"
        has_all_epochs = 0 < self.total_steps <= step
        return "--max-minutes" if self.clock.budget and not has_all_epochs else "--epochs"

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
        warmup = 0 if warmup_steps else PARTS // WARMUP_SHARE
        by_time = learning_rate(int(PARTS * clock.progress.share), PARTS, args.learning_rate, warmup, args.schedule)
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
        return self.clock.progress.is_over or 0 < self.total_steps <= step

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
        steps_share = step / self.total_steps if self.total_steps else 0.0
        if self.is_last(step) or self.clock.needs_evaluation(steps_share):
            return True
        return self._is_due(step, self.args.eval_every) and self.clock.progress.affords_evaluation

    def is_checkpoint_step(self, step: int) -> bool:
        """Whether a checkpoint is due after `step` steps."""
        return self._is_due(step, self.args.checkpoint_every)

    def needs_results(self, step: int) -> bool:
        """Whether all results must be known after `step` steps, since the run logs, evaluates or saves there."""
        return self.is_log_step(step) or self.is_evaluation_step(step) or self.is_checkpoint_step(step)

    def _is_due(self, step: int, interval: int | None) -> bool:
        """Whether a multiple of the interval, or of an epoch if it is 0, or the last step is reached."""
        return step % (interval or self.steps_per_epoch) == 0 or self.is_last(step)
