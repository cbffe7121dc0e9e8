"""Optimizer steps whose loss or gradient is not finite are skipped: the device decides, the host learns of it later."""

import math
from functools import partial
from typing import NamedTuple

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType, gather_object
from torch import Tensor, nn
from torch.optim import Optimizer

from data_utils.sources.records import Records
from runtime.console import say
from runtime.device import LateRead
from runtime.errors import TrainingError
from runtime.signals import StopRequest
from train_utils.run_state import Progress, RunState, StepResult
from train_utils.schedule import Schedule
from train_utils.sharding import gather_tensor

MAX_IN_A_ROW = 5
MOST_NAMES = 8  # the most images that a message names
MESSAGE = 4  # numbers that a process tells the others in a step


class QueuedStep(NamedTuple):
    """A step whose result is not known yet.

    Args:
        indices: those of this process's records.
        values: (2 + MESSAGE,), the loss, the gradient norm and the message of the step.
    """

    number: int
    indices: list[int]
    values: LateRead


class StepGuard:
    """Refuses a step whose loss or gradient is not finite. All processes refuse it together, since they share both.

    The device decides, and the host does not wait for it: a refused step leaves weights, optimizer state and running
    statistics as they were. The host reads the results a step later, in `settle`. DeepSpeed has made the step by then:
    with DeepSpeed the run ends, and can be resumed from its last checkpoint.

    Args:
        network: the model, not wrapped.
        optimizer: the optimizer that accelerate has prepared. A fused optimizer reads `found_inf` on the device; for
            others the host waits.
        schedule: says after which steps all results must be known; the progress of its clock travels to all processes.
        state: the state of the run, which counts the skipped steps.
        records: the training records; the images of a refused step are looked up there.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        network: nn.Module,
        optimizer: AcceleratedOptimizer,
        schedule: Schedule,
        state: RunState,
        records: Records,
    ) -> None:
        self.accelerator = accelerator
        self.schedule = schedule
        self.state = state
        self._records = records
        self.stopping = False  # a process was asked to stop, and the results of all steps are known
        self._reads_at_once = accelerator.device.type == "cpu"  # the results of a step, since it has ended
        self._is_deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
        # buffers of one type are kept in one tensor, so that one copy and one choice serve all of them
        by_type: dict[torch.dtype, list[Tensor]] = {}
        if not self._is_deepspeed:
            for buffer in network.buffers():
                by_type.setdefault(buffer.dtype, []).append(buffer)
        self._buffers = list(by_type.values())
        self._buffers_before: list[Tensor]  # the running statistics when the step began; `begin_step` sets it
        self._values: Tensor  # those of the `QueuedStep`; `check` sets them
        self._pending: list[QueuedStep] = []
        self._in_a_row = 0
        self._stop = StopRequest()
        self._optimizer = optimizer.optimizer  # ours, without accelerate's wrapper
        self._found_inf = torch.zeros((), dtype=torch.float32, device=accelerator.device)  # kernels want this type
        self._is_fused = not self._is_deepspeed and bool(self._optimizer.defaults.get("fused"))
        if self._is_fused:  # the hook refers to the flag only: a reference to the guard would keep everything alive
            self._optimizer.register_step_pre_hook(partial(_set_found_inf, self._found_inf))
            _start_momentum(self._optimizer)

    def message(self, like: Tensor) -> Tensor:
        """What this process tells the others in a step, (MESSAGE,), to be added up; of the type and device of `like`.

        These are whether it was asked to stop and, of the main process, the progress; zeros of the others.
        """
        progress = Progress(affords_evaluation=False)
        if self.accelerator.is_main_process:
            progress = self.schedule.clock.reading(steps_ahead=2 if self._reads_at_once else 3)
        numbers = [self._stop.is_asked, *progress]
        # filled on the device: a copy from the host would wait
        return torch.cat([like.new_full((1,), number) for number in numbers])

    def begin_step(self) -> None:
        """Copy the running statistics; call it before the forward pass."""
        self._buffers_before = [_join_buffers(buffers) for buffers in self._buffers]

    def check(self, loss: Tensor, grad_norm: Tensor | float, message: Tensor) -> Tensor:
        """Whether the step is made, a bool on the device; call it before `optimizer.step()`.

        All arguments are values over all processes.

        Args:
            grad_norm: the norm before clipping; of DeepSpeed a Python number, of FSDP spread over the processes.
            message: (MESSAGE,), the sum of all processes' messages.
        """
        whole_norm = gather_tensor(torch.as_tensor(grad_norm, device=loss.device))
        self._values = torch.cat([torch.stack([loss.detach(), whole_norm]), message])
        is_made = self._values[:2].isfinite().all()
        self._found_inf.copy_(~is_made)
        for buffers, before in zip(self._buffers, self._buffers_before, strict=True):
            _split_into(buffers, torch.where(is_made, _join_buffers(buffers), before))
        host_refuses = not (self._is_fused or self._is_deepspeed)
        if host_refuses and not is_made:  # to ask `is_made` waits for the device
            self._optimizer.zero_grad()  # without gradients a step does nothing
        return is_made

    def end_step(self, indices: list[int]) -> None:
        """Note that step `state.step` is queued; `indices` are the indices of this process's records in it."""
        self._pending.append(QueuedStep(self.state.step, indices, LateRead(self._values)))

    def results(self) -> list[StepResult]:
        """The results of the steps that are known now, of all steps where the run logs, evaluates or saves.

        Every process must call it. The clock takes over the progress.
        """
        results = self.settle(everything=self._reads_at_once)
        self.schedule.clock.note(results)
        if self.schedule.needs_results(self.state.step):
            results += self.settle(everything=True)
            self.schedule.clock.note(results)  # the next step has nothing to read yet
        return results

    @property
    def run_ends(self) -> bool:
        """Whether no step follows: the run was asked to stop, or its schedule is over."""
        return self.stopping or self.schedule.is_over(self.state)

    def settle(self, everything: bool) -> list[StepResult]:
        """Read the results of all steps but the last one, which the device still computes; every process must call it.

        Prints which steps were skipped. If a process was asked to stop, all results are read, and `stopping` is set.

        Args:
            everything: also read the last step's result. Without it the host does not wait: the other steps have ended.

        Raises TrainingError after several bad steps in a row.
        """
        count = len(self._pending)
        if not everything:
            count -= 1
        steps = self._pending[:count]
        self._pending = self._pending[count:]
        results = []
        for step, values in zip(steps, LateRead.read([step.values for step in steps]), strict=True):
            loss, grad_norm, stop_requests, share, is_over, affords_evaluation = values
            progress = Progress(share, bool(is_over), bool(affords_evaluation))
            result = StepResult(step.number, loss, grad_norm, bool(stop_requests), progress)
            results.append(result)
            self._count(result, step.indices)
        if any(result.is_stop_requested for result in results):
            self.stopping = True
            results += self.settle(everything=True)
        return results

    def _count(self, result: StepResult, indices: list[int]) -> None:
        """Count bad steps in a row, and print each with its images; a good step resets the count."""
        if result.is_made:
            self._in_a_row = 0
            return
        if self._is_deepspeed:
            raise TrainingError(
                f"step {result.step}: the gradient is not finite, and DeepSpeed has made the step with it; start again"
                " with --resume auto and a lower --learning-rate"
            )
        self.state.skipped += 1
        if self.accelerator.scaler is not None and math.isfinite(result.loss):
            return  # in fp16 the scaler meets infinite gradients while it finds its scale
        self._in_a_row += 1
        # the name of a stream's record is known only by reading it: so few images are named, and only of refused steps
        distinct = list(dict.fromkeys(gather_object(indices)))  # several processes may share an image
        names = [self._records.name(index) for index in distinct[:MOST_NAMES]]
        line = f"step {result.step}: loss or gradient not finite, step skipped; its images: {', '.join(names)}"
        if self._in_a_row == MAX_IN_A_ROW:
            raise TrainingError(
                f"{MAX_IN_A_ROW} steps in a row without a finite gradient; try a lower --learning-rate ({line})"
            )
        say(line)


def _set_found_inf(found_inf: Tensor, optimizer: Optimizer, *arguments: object) -> None:
    """Tell a fused optimizer, as GradScaler does in fp16, to leave the weights alone if `found_inf` is 1."""
    optimizer.found_inf = found_inf  # type: ignore[attr-defined]


def _join_buffers(buffers: list[Tensor]) -> Tensor:
    return torch.cat([buffer.flatten() for buffer in buffers])


def _split_into(buffers: list[Tensor], flat_values: Tensor) -> None:
    """Copy the values that `_join_buffers` has put into one tensor back into the buffers."""
    parts = flat_values.split([buffer.numel() for buffer in buffers])
    values = [part.view_as(buffer) for part, buffer in zip(parts, buffers, strict=True)]
    torch._foreach_copy_(buffers, values)


def _start_momentum(optimizer: Optimizer) -> None:
    """Set the momentum to zero: if fused SGD skips its first step, it leaves the momentum uninitialized."""
    for group in optimizer.param_groups:
        if group.get("momentum"):
            for parameter in group["params"]:
                optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
