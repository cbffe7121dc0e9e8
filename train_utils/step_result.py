"""What came of an optimizer step."""

import math
from typing import NamedTuple


class StepResult(NamedTuple):
    """The result of an optimizer step.

    Args:
        loss, grad_norm: over all processes.
        is_stop_requested: whether any process was asked to stop.
        began: when the step began, in milliseconds of the main process's clock.
    """

    step: int
    loss: float
    grad_norm: float
    is_stop_requested: bool
    began: int = 0

    @property
    def is_made(self) -> bool:
        """Whether loss and gradient are finite. Only then the weights move, except with DeepSpeed."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)
