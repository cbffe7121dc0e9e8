"""The loss of a step whose volumes are cut into slabs: that of whole volumes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.step_loss import StepLoss
from tasks.target import Target
from tasks.task import Task
from train_utils.slabs.cut import Slabs
from train_utils.slabs.mesh import Mesh


class SlabLoss(StepLoss):
    """The loss of a step whose images are cut into slabs; targets are whole, logits cover this process's slab.

    Args:
        strides: see `StepLoss`.
    """

    def __init__(self, task: Task, strides: Sequence[Sequence[int]], slabs: Slabs) -> None:
        super().__init__(task, strides)
        self.slabs = slabs

    def counts(self, targets: Target) -> Tensor:
        """The counts of whole images on the first process of a group; zeros on the others."""
        counts = super().counts(targets)
        return counts if self.slabs.mesh.is_first else torch.zeros_like(counts)

    def sums(self, logits: Tensor, targets: Target) -> Tensor:
        """(T,): the sum of each term over whole images, from the slabs of all processes."""
        slab_sums = self._partial(logits, targets)
        flat = torch.cat([values.flatten() for values in slab_sums])
        totals = _SumOverSlabs.apply(flat, self.slabs.mesh).split([values.numel() for values in slab_sums])
        image_sums = [total.view_as(values) for total, values in zip(totals, slab_sums, strict=True)]
        return self.task.finish(tuple(image_sums))

    def share_from_rendered(self, logits: Tensor | Sequence[Tensor], targets: Target, counts: Tensor) -> Tensor:
        """This process's share of the loss: an equal part of the value that the processes of a group have computed."""
        return super().share_from_rendered(logits, self.slabs.cut_targets(targets), counts) / self.slabs.mesh.size


class _SumOverSlabs(torch.autograd.Function):
    """The sum of values over the processes of a group; all of them use this sum in the same way."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mesh: Mesh) -> Tensor:
        ctx.size = mesh.size
        return mesh.sum(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.size, None  # the sum of the processes' gradients, which are equal
