"""Where a run stands: part of every checkpoint."""

from dataclasses import dataclass, field

import torch

from train_utils.evaluation import Evaluation


@dataclass
class RunState:
    """Where a run stands after `step` optimizer steps; part of every checkpoint.

    Args:
        best: mean IoU of the best evaluation, -1 before the first; its step, confusion matrix and each image's IoU.
        window: the loss that has not been logged yet, as in LossWindow.
        skipped: how many steps had a loss or gradient that was not finite.
    """

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    best_matrix: list[list[int]] = field(default_factory=list)
    best_images: list[float] = field(default_factory=list)
    evaluations_since_best: int = 0
    window: dict = field(default_factory=lambda: {"total": 0.0, "steps": 0})
    skipped: int = 0

    def update(self, evaluation: Evaluation) -> bool:
        """Note an evaluation; whether it is the best one so far."""
        improved = evaluation.mean_iou > self.best
        self.evaluations_since_best = 0 if improved else self.evaluations_since_best + 1
        if improved:
            self.best, self.best_step = evaluation.mean_iou, evaluation.step
            self.best_matrix, self.best_images = evaluation.matrix.tolist(), evaluation.image_iou
        return improved

    def forget_best(self) -> None:
        """Forget the best score, whose model is not in this folder."""
        self.best, self.evaluations_since_best = -1.0, 0

    def best_evaluation(self, class_names: tuple[str, ...]) -> Evaluation | None:
        """The best evaluation so far, but for its loss; None before the first."""
        if self.best < 0:
            return None
        return Evaluation(self.best_step, class_names, torch.tensor(self.best_matrix), None, self.best_images)
