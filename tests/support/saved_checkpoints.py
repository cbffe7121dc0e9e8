"""Checkpoints of a tiny network: their task, settings and scores, and which of them are there."""

import torch

from tasks.classes.loss import Classes
from tasks.classes.scores import ClassScores
from train_utils.checkpoints import Checkpoints
from train_utils.evaluation import Evaluation
from train_utils.settings.record import RunSettings

TASK = Classes(("a", "b"))
SETTINGS = RunSettings(flags={}, total_steps=9, micro_batch_size=1)


def evaluation(step: int, mean_iou: float) -> Evaluation:
    """An evaluation with this mean IoU for both of its classes."""
    # Of 100 pixels in the union of a class, `hits` are in the intersection.
    hits, misses = round(100 * mean_iou), 100 - round(100 * mean_iou)
    matrix = torch.tensor([[2 * hits, misses], [misses, 2 * hits]])
    return Evaluation(step, 0.5, ClassScores(TASK.names, matrix, torch.tensor([[mean_iou]])))


def steps(checkpoints: Checkpoints) -> list[int]:
    """The steps of the checkpoints that are there."""
    return sorted(int(path.name.removeprefix("step-")) for path in checkpoints.folder.glob("step-*"))
