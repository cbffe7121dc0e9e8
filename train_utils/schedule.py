"""The schedule of a run by steps or by the clock: learning rate, logging, evaluation, checkpoints, the end."""

import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import psutil
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch.optim import Optimizer

from train_utils.optim import learning_rate
from train_utils.run_state import RunState, StepResult
from train_utils.settings.train_settings import TrainSettings

ENDLESS = 2**40  # steps that are offered to a run by the clock
WARMUP_SHARE = 20  # the learning rate rises in this part of the run
ENCODER_SHARE = 0.1  # a pretrained encoder's share of the learning rate
FINISH = 2500  # milliseconds for charts and the report, without their pictures (2 to 4 s on one busy core)
RESERVE = 1.25  # the last evaluation and save get so many times what the longest ones took
RECENT_STEPS = 5  # the longest of these says how long the next step may take
FIRST_EVALUATION = 10  # at the latest this part of the time is over when the first evaluation begins
EVALUATION_PART = 10  # evaluations take at most one part in so many of the time since training began
# when the process began, on the monotonic clock: it has imported modules before this line
PROCESS_START = time.monotonic() - (time.time() - psutil.Process().create_time())


def milliseconds_since_start() -> int:
    """The time since this process began."""
    return int(1000 * (time.monotonic() - PROCESS_START))


def slowness() -> float:
    """About how many times as long a single thread takes as on a quiet machine, since other programs are busy too.

    With a load of 13 on two processors, the report of a run took three to four times as long.
    """
    if not hasattr(os, "getloadavg"):  # Windows has no such number
        return 1.0
    own_load = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) * torch.get_num_threads()
    others = max(0.0, os.getloadavg()[0] - own_load)
    return 1 + others / (3 * (os.cpu_count() or 1))


class Clock:
    """The progress of a run by time, `done` of `total` milliseconds, the same numbers on all processes.

    The main process's time travels with the exchange of each step, so no process waits for it. `total` is the part of
    the run's minutes that is for training: the last evaluation, the last save and the report come after it. In a run
    without minutes nothing here does anything.

    Args:
        minutes: the length of the run; None if its steps are counted.
        minutes_used: what the run had used of them when its checkpoint was saved.
        report_share: how many times as long as an evaluation the report's pictures take.
        spaces_evaluations: whether evaluations wait until they keep to their part of the time.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        minutes: float | None,
        minutes_used: float,
        *,
        report_share: float = 0.0,
        spaces_evaluations: bool = True,
    ) -> None:
        self.accelerator = accelerator
        self.budget = int(60_000 * (minutes or 0))
        self.before = int(60_000 * minutes_used)
        self.report_share = report_share
        self.spaces_evaluations = spaces_evaluations
        self.evaluated = 0  # milliseconds of all evaluations
        self.begin = 0  # of the first step of this process
        self.done = 0
        self.total = self.budget
        self.is_over = False  # whether the next step would cross the end; only `note` changes it
        self._evaluations: list[int] = []  # milliseconds of each
        self._saves: list[int] = []
        self._last: StepResult | None = None  # the last step, unless there was a pause behind it
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)

    def now(self) -> int:
        """Milliseconds that the run has used, on this process's own clock."""
        return self.before + milliseconds_since_start()

    @property
    def measures_save(self) -> bool:
        """Whether a save should be waited for, since nobody knows yet how long one takes."""
        return bool(self.budget) and not self._saves

    def note(self, results: Iterable[StepResult], step: int) -> None:
        """Take over the times at which steps began, after `step` steps; all processes have the same results."""
        if not self.budget:
            return
        for result in results:
            if self._last is not None:
                self._steps.append((result.began - self._last.began) / (result.step - self._last.step))
            self._last = result
            self.done = max(self.done, result.began)
            # the steps after this one are made or queued, and the next one comes behind them
            steps_ahead = step - result.step + 2
            self.is_over = result.began + steps_ahead * self._longest_step > self.total

    def evaluating(self) -> AbstractContextManager[None]:
        """A context for an evaluation; every process must enter it."""
        return self._measuring(self._evaluations)

    def saving(self, state: RunState) -> AbstractContextManager[None]:
        """A context for a save, which notes the time in the state; every process must enter it."""
        state.elapsed = self.now() if self.budget else 0
        return self._measuring(self._saves)

    @contextmanager
    def _measuring(self, durations: list[int]) -> Iterator[None]:
        begin = self.now()
        yield
        durations.append(self.now() - begin)
        self.synchronize()

    def start(self) -> None:
        """Begin the training; every process must call it."""
        self.synchronize()
        self.begin = self.done

    def synchronize(self) -> None:
        """Take over the main process's time, and what it keeps for the end of the run; every process must call it."""
        if not self.budget:
            return
        report = FINISH * slowness() + self.report_share * self._evaluation
        end = int(RESERVE * (self._evaluation + max(self._saves, default=0)) + report)
        times = torch.tensor([self.now(), self.budget - end, sum(self._evaluations)], device=self.accelerator.device)
        now, total, self.evaluated = broadcast(times).tolist()
        before = self.done
        self.done = max(self.done, now)
        # the share that is done never falls, even if the evaluations become faster
        most = self.done * self.total // before if before else total
        self.total = max(1, min(most, total))
        self._last = None

    def needs_evaluation(self, epochs: float) -> bool:
        """Whether an epoch or a tenth of the time has passed without any evaluation, whose length nobody knows yet."""
        is_late = epochs >= 1 or FIRST_EVALUATION * (self.done - self.begin) >= self.total - self.begin
        return bool(self.budget) and not self._evaluations and is_late

    @property
    def affords_evaluation(self) -> bool:
        """Whether all evaluations keep to their part of the time if another one follows; the first one always does."""
        if not self.budget or not self.spaces_evaluations or not self._evaluations:
            return True
        with_another = self.evaluated + self.evaluated / len(self._evaluations)
        return EVALUATION_PART * with_another <= self.done - self.begin

    @property
    def _evaluation(self) -> int:
        """Milliseconds of the longest evaluation, without the first one, which warms up, if there are others."""
        return max(self._evaluations[1:] or self._evaluations, default=0)

    @property
    def _longest_step(self) -> float:
        return max(self._steps, default=0.0)


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

    @classmethod
    def from_args(cls, args: TrainSettings, images: int, max_steps: int | None, clock: Clock) -> "Schedule":
        """The schedule that the flags ask for.

        Args:
            images: the number of training images.
            max_steps: the steps of --max-steps, or of a checkpoint; None for --epochs and runs by the clock.
        """
        steps_per_epoch = math.ceil(images / args.planned_batch_size)
        total_steps = max_steps or (args.epochs or 0) * steps_per_epoch
        assert total_steps or clock.budget, "the plan decides the epochs"
        return cls(args, steps_per_epoch, total_steps, clock)

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
        """Whether the numbers of training are logged after `step` steps."""
        return self._is_due(step, self.args.log_every)

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
