"""The schedule of a run: learning rate, logging, evaluation, checkpoints, the end."""

import math
from dataclasses import dataclass

from torch.optim import Optimizer

from train_utils.clock import Clock
from train_utils.learning_rates import learning_rate
from train_utils.run_state import RunState
from train_utils.settings.train_settings import TrainSettings

ENDLESS = 2**40  # steps that are offered to a run by the clock
WARMUP_SHARE = 20  # the learning rate rises in this part of the run
ENCODER_SHARE = 0.1  # a pretrained encoder's share of the learning rate


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

    def say_forecast(self, step: int) -> None:
        """Print about how many steps a run by the clock will have; call it after each evaluation."""
        self.clock.say_forecast(step, self.args.eval_every or self.steps_per_epoch)

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
