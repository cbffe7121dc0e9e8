"""The loss of classes by plain masks, for tests that have no targets."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.classes.loss import Classes
from tasks.classes.target import ClassTarget
from tasks.step_loss import StepLoss


def classes(count: int, loss: str = "ce+dice", weights: Tensor | None = None) -> Classes:
    """The task of so many classes, which are named by their numbers."""
    return Classes(tuple(map(str, range(count))), loss, weights)


class ClassLoss:
    """A `StepLoss` of classes that takes masks (B, *spatial) where that takes targets.

    Attributes:
        loss: the `StepLoss`, for code that wants one.
    """

    def __init__(
        self,
        num_classes: int,
        kind: str = "ce+dice",
        class_weights: Tensor | None = None,
        strides: Sequence[Sequence[int]] = (),
    ) -> None:
        self.strides = strides
        self.loss = StepLoss(classes(num_classes, kind, class_weights), strides)

    def to(self, device: str) -> "ClassLoss":
        """The loss itself, with its weights on a device."""
        self.loss = StepLoss(self.loss.task.to(torch.device(device)), self.strides)
        return self

    def counts(self, masks: Tensor) -> Tensor:
        """(2,): the counts of the finest level alone."""
        return self.loss.task.counts(ClassTarget(masks))

    def step_counts(self, masks: Tensor) -> Tensor:
        """(2 * levels,): the counts of each level."""
        return self.loss.counts(ClassTarget(masks))

    def sums(self, logits: Tensor, masks: Tensor) -> Tensor:
        return self.loss.sums(logits, ClassTarget(masks))

    def __call__(self, logits: Tensor | Sequence[Tensor], masks: Tensor, counts: Tensor) -> Tensor:
        return self.loss(logits, ClassTarget(masks), counts)
