"""The schedule of a run by step: learning rate, logging, evaluation, checkpoints, the end."""

import math
from dataclasses import dataclass

from torch.optim import Optimizer

from train_utils.run_state import RunState
from train_utils.settings.train_settings import SCHEDULES, TrainSettings

FEW_STEPS = 500  # with fewer steps the masks are poor


@dataclass(frozen=True)
class Schedule:
    """A run as a function of its step; nothing of it needs to be saved.

    Args:
        kind: how the learning rate falls, one of SCHEDULES.
        log_every, eval_every, checkpoint_every: steps; all three happen at the last step too.
        patience: evaluations without a better score before the run stops; None never stops it.
        encoder_factor: an encoder's share of the learning rate.
    """

    steps_per_epoch: int
    total_steps: int
    peak: float
    warmup_steps: int
    kind: str
    log_every: int
    eval_every: int
    checkpoint_every: int
    patience: int | None
    encoder_factor: float

    @classmethod
    def from_args(cls, args: TrainSettings, images: int, total_steps: int | None) -> "Schedule":
        """The schedule that the flags ask for.

        Args:
            images: the number of training images.
            total_steps: the steps of --max-steps, or those that fit into --max-minutes; None for --epochs.
        """
        steps_per_epoch = math.ceil(images / args.planned_batch_size)
        if total_steps is None:
            assert args.epochs is not None, "the plan decides it"
            total_steps = args.epochs * steps_per_epoch
        elif args.epochs and args.max_minutes:  # whichever comes first
            total_steps = min(total_steps, args.epochs * steps_per_epoch)
        default_factor = 1.0 if args.encoder_weights == "random" else 0.1
        return cls(
            steps_per_epoch,
            total_steps,
            peak=args.learning_rate,
            warmup_steps=total_steps // 20 if args.warmup_steps is None else args.warmup_steps,
            kind=args.schedule,
            log_every=args.log_every or steps_per_epoch,
            eval_every=args.eval_every or steps_per_epoch,
            checkpoint_every=args.checkpoint_every or steps_per_epoch,
            patience=args.patience,
            encoder_factor=args.encoder_lr_factor or default_factor,
        )

    def set_learning_rate(self, optimizer: Optimizer, step: int) -> float:
        """Give the optimizer the learning rate of step `step` (from 0), and return it."""
        rate = learning_rate(step, self.total_steps, self.peak, self.warmup_steps, self.kind)
        for group in optimizer.param_groups:
            group["lr"] = rate * (self.encoder_factor if group["of_encoder"] else 1)
        return rate

    def remaining_steps(self, state: RunState) -> range:
        """The steps that are still to be made."""
        return range(state.step, self.total_steps)

    def epoch(self, step: int) -> float:
        """The number of epochs in `step` steps."""
        return step / self.steps_per_epoch

    def is_last(self, step: int) -> bool:
        """Whether nothing is left to do after `step` steps."""
        return step >= self.total_steps

    def is_over(self, state: RunState) -> bool:
        """Whether a run with this state has made all its steps, or has run out of patience."""
        return self.is_last(state.step) or self.is_out_of_patience(state)

    def is_out_of_patience(self, state: RunState) -> bool:
        """Whether `patience` evaluations in a row were no better than the best one."""
        return self.patience is not None and state.evaluations_since_best >= self.patience

    def is_log_step(self, step: int) -> bool:
        """Whether the numbers of training are logged after `step` steps."""
        return step % self.log_every == 0 or self.is_last(step)

    def is_evaluation_step(self, step: int) -> bool:
        """Whether the model is evaluated after `step` steps."""
        return step % self.eval_every == 0 or self.is_last(step)

    def is_checkpoint_step(self, step: int) -> bool:
        """Whether a checkpoint is due after `step` steps."""
        return step % self.checkpoint_every == 0 or self.is_last(step)

    def needs_results(self, step: int) -> bool:
        """Whether all results must be known after `step` steps, since the run logs, evaluates or saves there."""
        return self.is_log_step(step) or self.is_evaluation_step(step) or self.is_checkpoint_step(step)


def learning_rate(step: int, total_steps: int, peak: float, warmup_steps: int, schedule: str) -> float:
    """The rate of optimizer step `step` (from 0): linear warm-up, then `cosine`, `poly` (power 0.9) or `constant`.

    The rate depends on the step alone: no state needs to be saved, and no scheduler advances once for each process.
    Raises ValueError for another schedule.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is none of {', '.join(SCHEDULES)}")
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if schedule == "cosine":
        return peak * (1 + math.cos(math.pi * progress)) / 2
    if schedule == "poly":
        return peak * (1 - progress) ** 0.9
    return peak
