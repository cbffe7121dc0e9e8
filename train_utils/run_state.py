"""Where a run stands, which is part of every checkpoint, and what came of a step."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from runtime.errors import CheckpointError
from runtime.values import Count, from_json
from tasks.task import Task
from train_utils.evaluation import Evaluation


class Progress(NamedTuple):
    """What the main process's clock tells all processes.

    Args:
        share: of the time for training, how much is over; it never falls, and is 0 if the steps are counted.
        is_over: whether the next step would cross the end.
        affords_evaluation: whether there is time for an evaluation that is not the last one.
    """

    share: float = 0.0
    is_over: bool = False
    affords_evaluation: bool = True


class StepResult(NamedTuple):
    """The result of an optimizer step.

    Args:
        loss, grad_norm: over all processes.
        is_stop_requested: whether any process was asked to stop.
        progress: as the step began.
    """

    step: int
    loss: float
    grad_norm: float
    is_stop_requested: bool
    progress: Progress = Progress()

    @property
    def is_made(self) -> bool:
        """Whether loss and gradient are finite. Only then the weights move, except with DeepSpeed."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass
class LossWindow:
    """The total loss of the steps that were made and not logged yet, and their number."""

    total: float = 0.0
    steps: Count = 0


@dataclass
class RunState:
    """Where a run stands after `step` optimizer steps; part of every checkpoint.

    Args:
        best: the score of the best evaluation, -1 before the first; then its step, and all its scores as JSON.
        skipped: how many steps had a loss or gradient that was not finite.
        elapsed: milliseconds of a run with --max-minutes.
    """

    step: Count = 0
    best: float = -1.0
    best_step: Count = 0
    best_scores: dict[str, Any] = field(default_factory=dict)
    evaluations_since_best: Count = 0
    window: LossWindow = field(default_factory=LossWindow)
    skipped: Count = 0
    elapsed: Count = 0

    @classmethod
    def from_json(cls, value: Any) -> "RunState":
        """The state in a checkpoint; older ones have a confusion matrix, and the IoU of each image."""
        if isinstance(value, dict) and "best_matrix" in value:
            value = dict(value)
            value["best_scores"] = {"sums": value.pop("best_matrix"), "by_image": value.pop("best_images", [])}
        return from_json(cls, value, "its run")

    @property
    def has_best(self) -> bool:
        """Whether there was an evaluation whose model is on disk."""
        return self.best >= 0

    def update(self, evaluation: Evaluation, is_best: bool) -> None:
        """Note an evaluation; `is_best` says that it is the best one so far, and that its model is on disk."""
        if is_best:
            self.best = evaluation.scores.comparison
            self.best_step = evaluation.step
            self.best_scores = evaluation.scores.to_json()
            self.evaluations_since_best = 0
        else:
            self.evaluations_since_best += 1

    def best_evaluation(self, task: Task) -> Evaluation | None:
        """The best evaluation so far, but for its loss; None before the first.

        Raises CheckpointError if the scores in the checkpoint are not those of the task.
        """
        if not self.has_best:
            return None
        try:
            scores = task.scores_from_json(self.best_scores)
            if "reliability" in self.best_scores:  # which checkpoints of earlier versions do not have
                scores.add_reliability(torch.tensor(self.best_scores["reliability"]))
            scores.record()
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise CheckpointError(f"the state.json of the checkpoint: its best_scores are damaged ({error})") from error
        return Evaluation(self.best_step, None, scores)
