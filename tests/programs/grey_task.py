"""Run a script with one more task, "grey", for tests of the seam alone: `grey_task.py train.py --task grey ...`.

The network learns the grey value of a mask of 8 bits, divided by 255: one output, whose sigmoid is the value.
"""

import runpy
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from data_utils.target import Target, labels
from data_utils.targets.reader import MaskReader
from tasks import TASKS, Column, MaskFormat, Scores, Section, Task, TaskKind

UNKNOWN = -1
WHITE = 255


@dataclass(frozen=True, eq=False)
class GreyTarget(Target):
    """grey: the value of each pixel, -1 where it is unknown."""

    grey: Any = labels(unknown=UNKNOWN, dtype="int16")


class GreyScores(Scores):
    """The mean absolute error: `sums` (2,) int64 are the errors of all known pixels together, and their number."""

    compared = Column("closeness", "closeness")  # 1 where all is right, 0 where black is white
    headline = (compared, Column("grey_error", "grey error"))

    def add(self, prediction, target, index):
        known = target.grey != UNKNOWN
        errors = ((prediction.long() - target.grey.long()).abs() * known).sum()
        pixels = known.sum()
        self.sums += torch.stack([errors, pixels])
        self.by_image[index, 0] += (pixels * WHITE - errors) / (pixels * WHITE).clamp_min(1)  # a filler adds 0

    @property
    def values(self):
        total, pixels = self.sums.tolist()
        error = total / pixels if pixels else None
        return {"closeness": None if error is None else 1 - error / WHITE, "grey_error": error, "pixels": pixels}


class Grey(Task):
    """The squared error of sigmoid(logit) against value / 255, per known pixel; the nearest value is predicted."""

    name = "grey"
    scores = GreyScores
    target = GreyTarget
    output_names = ("grey",)

    def counts(self, targets):
        return (targets.grey != UNKNOWN).sum(dtype=torch.float64)[None]

    def partial(self, logits, targets):
        errors = logits.float().sigmoid().squeeze(1) - targets.grey / WHITE
        return ((errors.square() * (targets.grey != UNKNOWN)).sum(),)

    def decode(self, logits):
        return (WHITE * logits[:, 0].sigmoid()).round().to(torch.uint8)

    def new_scores(self, images, device="cpu"):
        return GreyScores(torch.zeros(2, dtype=torch.int64, device=device), torch.zeros(images, 1, device=device))


@dataclass(frozen=True)
class GreyReader(MaskReader):
    """The values of a mask as they are."""

    target = GreyTarget

    def task(self, loss, class_weights):
        return Grey()

    def target_from_mask(self, values, name):
        return GreyTarget(values.astype(np.int16))

    def describe(self):
        return "grey values"


TASKS[Grey.name] = TaskKind(Grey, GreyReader, Section, MaskFormat)

if __name__ == "__main__":
    # what is pickled must be found again by other processes: by this name, and not in their own __main__
    import grey_task  # noqa: F401  # it registers the task

    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
