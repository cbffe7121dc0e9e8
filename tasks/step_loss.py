"""The loss of an optimizer step, for any task and for any split of the step.

Each term's sum is divided by a count over the whole step. The counts depend on the targets alone, so they are known
before the first forward pass, and every micro-batch on every process contributes its share.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from data_utils.target import Target
from tasks.task import Task


class StepLoss:
    """The loss of a task over the levels of deep supervision (Lee et al. 2015, arXiv:1409.5185).

    The weight of level i is proportional to 1 / 2^i; all weights add up to 1.

    Args:
        strides: for each level of logits except the finest, the factors along each axis by which it is smaller than the
            next finer level.
    """

    def __init__(self, task: Task, strides: Sequence[Sequence[int]] = ()) -> None:
        self.task = task
        self._counts: Callable[[Target], Tensor] = task.counts  # this and `_partial` may be compiled
        self._partial: Callable[[Tensor, Target], tuple[Tensor, ...]] = task.partial
        levels = len(strides) + 1
        self.level_weights = [2 ** (levels - 1 - level) / (2**levels - 1) for level in range(levels)]
        # for each coarser level, the factor along each axis from the finest level
        self.level_factors: list[Sequence[int]] = []
        for stride in strides:
            if self.level_factors:
                stride = [above * factor for above, factor in zip(self.level_factors[-1], stride, strict=True)]
            self.level_factors.append(stride)

    def compile(self, **options: Any) -> None:
        """Compile the computations over pixels, with the options of `torch.compile`."""
        self._counts = torch.compile(self.task.counts, **options)
        self._partial = torch.compile(self.task.partial, **options)

    def counts(self, targets: Target) -> Tensor:
        """(levels * T,): the divisor of each level's terms, from targets (B, *spatial) at full size."""
        return torch.cat([self._counts(level_targets) for level_targets in self._levels(targets)])

    def sums(self, logits: Tensor, targets: Target) -> Tensor:
        """(T,): the sum of each term, from logits (B, outputs, *spatial) and rendered targets (B, *spatial)."""
        return self.task.finish(self._partial(logits, targets), targets)

    def __call__(self, logits: Tensor | Sequence[Tensor], targets: Target, counts: Tensor) -> Tensor:
        """This micro-batch's share (a scalar) of the loss of a step; the shares add up.

        Args:
            logits: (B, outputs, *spatial); with several levels one tensor for each level, finest first.
            targets: (B, *spatial).
            counts: the sum of `counts` over the whole step.
        """
        return self.share_from_rendered(logits, self.task.render(targets), counts)

    def share_from_rendered(self, logits: Tensor | Sequence[Tensor], targets: Target, counts: Tensor) -> Tensor:
        """This micro-batch's share of the loss of a step, from targets that `Task.render` has rendered."""
        by_level = [logits] if isinstance(logits, Tensor) else logits
        counts = torch.where(counts > 0, counts, 1).view(-1, self.task.terms)
        shares = []
        for level_logits, level_targets, count in zip(by_level, self._levels(targets), counts, strict=True):
            sides = [slice(side) for side in level_targets.shape[1:]]
            level_logits = level_logits[(..., *sides)]  # an encoder pads to its stride
            sums = self.sums(level_logits, level_targets)
            shares.append((sums / count.to(sums.dtype)).sum())
        return sum(weight * share for weight, share in zip(self.level_weights, shares, strict=True))

    def _levels(self, targets: Target) -> list[Target]:
        """The targets (B, *spatial) at the size of each level."""
        levels = [targets]
        for factors in self.level_factors:
            levels.append(self.task.at_level(targets, factors))
        return levels
