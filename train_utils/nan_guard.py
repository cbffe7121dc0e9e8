"""Skips optimizer steps whose gradient is not finite."""

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from torch import Tensor, nn

from runtime.console import say
from runtime.errors import TrainingError
from train_utils.checkpoints.run_state import RunState

MAX_IN_A_ROW = 5


class StepGuard:
    """Refuses a step whose gradient is not finite, on all processes together, since they share the gradient.

    Not in fp16: there the scaler meets infinite gradients while it finds its scale, and skips them by itself. Nor under
    DeepSpeed, which has made the step by then: there the run ends, and can go on from its last checkpoint.

    Args:
        network: the model, not wrapped; its running statistics have seen the step already and are put back.
        state: counts the steps that were skipped.
    """

    def __init__(self, accelerator: Accelerator, network: nn.Module, state: RunState) -> None:
        self.accelerator = accelerator
        self.network = network
        self.state = state
        self._in_a_row = 0

    def begin_step(self) -> None:
        """Before the forward pass."""
        self._buffers = [buffer.clone() for buffer in self.network.buffers()]

    def accepts(self, grad_norm: Tensor) -> bool:
        """Whether the step may be made; if not, everything is as before it, and `refuse` is to be called.

        A sync point with the device, but in fp16: the host must know whether to make the step.
        """
        if self.accelerator.scaler is not None or bool(torch.isfinite(grad_norm)):
            self._in_a_row = 0
            return True
        if self.accelerator.distributed_type == DistributedType.DEEPSPEED:
            raise TrainingError(
                "the gradient is not finite, and DeepSpeed has made the step with it; --resume auto goes back to the"
                " last checkpoint, lower --learning-rate for it"
            )
        for buffer, before in zip(self.network.buffers(), self._buffers, strict=True):
            buffer.copy_(before)
        return False

    def refuse(self, images: list[str]) -> None:
        """Say which images, of this process, were in the step; a TrainingError after several in a row."""
        self.state.skipped += 1
        self._in_a_row += 1
        names = ", ".join(gather_object(images)[:8])
        line = f"step {self.state.step}: loss or gradient not finite, step skipped; its images: {names}"
        if self._in_a_row == MAX_IN_A_ROW:
            raise TrainingError(
                f"{MAX_IN_A_ROW} steps in a row without a finite gradient, lower --learning-rate? {line}"
            )
        say(line)
