"""Batch norm over the micro-batches of all processes."""

import math
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from data_utils.loading.batch_sampler import BatchSplit
from runtime.console import counted, say
from runtime.device import full_precision
from runtime.distributed import COLLECTIVE_TIMEOUT

BATCH_NORMS = (nn.BatchNorm2d, nn.BatchNorm3d)


def synchronize_batchnorm(accelerator: Accelerator, model: nn.Module, choice: str, batch_split: BatchSplit) -> None:
    """Convert batch norm in place so that it sees all processes' micro-batches, unless `choice` is `off`.

    `choice` is `on`, `auto` or `off`. Prints a line if batch norm sees fewer images at a time than a step has: its
    statistics then depend on the launch. accelerate does not convert by itself.
    """
    norms = {}
    for name, module in model.named_modules():
        if isinstance(module, BATCH_NORMS) and module.training:  # a frozen encoder's stay in evaluation mode
            norms[name] = module
    if not norms:
        return
    micro_batches = batch_split.accumulation  # they share the images of a step, and each has its own statistics
    if choice != "off" and accelerator.num_processes > 1:
        for name, norm in norms.items():
            model.set_submodule(name, SynchronizedBatchNorm.from_norm(norm))
    else:
        micro_batches *= accelerator.num_processes
    images = math.ceil(batch_split.batch_size / micro_batches)
    if images != batch_split.batch_size:
        say(
            f"batch norm sees {counted(images, 'image')} at a time, not the {batch_split.batch_size} of a step, so"
            " results depend on the launch; with --norm group they do not"
        )


def leave_out_of_batch_norm(model: nn.Module, is_filler: bool) -> None:
    """Leave this process's next micro-batch out of the statistics of all processes if it `is_filler`."""
    for module in model.modules():
        if isinstance(module, SynchronizedBatchNorm):
            module.is_counted = not is_filler


@cache
def _process_group() -> dist.ProcessGroup:
    """A separate group of all processes, so that small reductions do not queue behind DDP's exchange of gradients."""
    return dist.new_group(timeout=COLLECTIVE_TIMEOUT)


class SynchronizedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm of images or volumes over the batches of all processes, each with any number of values.

    The numbers equal those of torch's SyncBatchNorm, which makes the host wait three times in each layer (torch 2.13).
    Here the host does not wait, and the layer works on any device and backend.

    Attributes:
        is_counted: whether this process's values count in the statistics; they are normalized in either case.
    """

    is_counted = True

    @classmethod
    def from_norm(cls, norm: nn.BatchNorm2d | nn.BatchNorm3d) -> "SynchronizedBatchNorm":
        """A layer with the parameters, buffers and settings of `norm`."""
        synchronized = cls.__new__(cls)
        synchronized.__dict__ = norm.__dict__
        return synchronized

    def _check_input_dim(self, x: Tensor) -> None:
        """Accept any number of axes."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        self.num_batches_tracked.add_(1)
        y, mean, var, count = _Normalize.apply(x, self.weight, self.bias, self.running_mean, self.eps, self.is_counted)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (count / (count - 1)), self.momentum)
        return y


class _Normalize(torch.autograd.Function):
    """Each channel of x (B, C, *spatial), normalized over all processes (Ioffe & Szegedy 2015)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor, eps: float, is_counted: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Normalize x.

        Args:
            shift: (C,), near the mean, and the same on all processes; the sums are sums of differences from it.
            is_counted: whether x counts in the statistics.

        Returns:
            The output; mean and variance (C,) over all processes; the number () of values in these.
        """
        sums = _sums(x, shift, eps) if is_counted else shift.new_zeros(1 + 2 * len(shift), dtype=torch.float64)
        dist.all_reduce(sums, group=_process_group())
        count = sums[0]
        difference, square = (sums[1:] / count).chunk(2)
        mean = (shift + difference).to(weight.dtype)
        var = (square - difference.square()).clamp_min(0).to(weight.dtype)
        ctx.eps = eps
        ctx.is_counted = is_counted
        ctx.save_for_backward(x, weight, mean, var, count)
        ctx.mark_non_differentiable(mean, var, count)
        if x.is_cuda:  # the kernel of torch's SyncBatchNorm
            output = torch.batch_norm_elemt(x, weight, bias, mean, (var + eps).rsqrt(), eps)
        else:  # the kernel of evaluation normalizes by the mean and variance that it is given
            output = F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)
        return output, mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, var, count = ctx.saved_tensors
        invstd = (var + ctx.eps).rsqrt()
        if x.is_cuda:
            # torch's SyncBatchNorm calls the same kernels (torch 2.13, nn/modules/_functions.py)
            sum_grad, sum_grad_x, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
                grad, x, mean, invstd, weight, True, True, True
            )
            means = _means(torch.stack([sum_grad, sum_grad_x]), count, ctx.is_counted)
            one = torch.ones(1, dtype=torch.int32, device=x.device)  # the kernel divides by it: these are means already
            grad_input = torch.batch_norm_backward_elemt(grad, x, mean, invstd, weight, *means, one)
            return grad_input, grad_weight, grad_bias, None, None, None
        # evaluation's kernel treats mean and variance as constants: the terms that depend on them are subtracted
        nothing = mean.new_empty(0)
        grad_input, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, mean, var, nothing, nothing, False, ctx.eps, [True, True, True]
        )
        means = _means(torch.stack([grad_weight, grad_bias]), count, ctx.is_counted)
        weight_means, bias_means = means * weight * invstd
        slope = weight_means * invstd
        grad_input -= torch.addcmul(_column(bias_means - slope * mean, x), x, _column(slope, x))
        return grad_input, grad_weight, grad_bias, None, None, None


def _sums(x: Tensor, shift: Tensor, eps: float) -> Tensor:
    """(1 + 2 C,) float64: the number of values of a channel, then sums of differences from `shift` and of squares."""
    if x.is_cuda:  # by torch's source, this takes one pass over half precision and no copy in float32
        mean, invstd = torch.batch_norm_stats(x, eps)
        var = invstd.pow(-2) - eps
    else:
        axes = [axis for axis in range(x.ndim) if axis != 1]
        var, mean = torch.var_mean(full_precision(x), dim=axes, correction=0)
    difference = mean.double() - shift
    square = var.double() + difference.square()
    return torch.cat([difference.new_ones(1), difference, square]) * (x.numel() // x.shape[1])


def _means(sums: Tensor, count: Tensor, is_counted: bool) -> Tensor:
    """The sums over all processes, divided by `count`; zeros if this process is not counted in the statistics."""
    dist.all_reduce(sums, group=_process_group())
    return sums / count if is_counted else torch.zeros_like(sums)


def _column(values: Tensor, x: Tensor) -> Tensor:
    """Values (C,) as (1, C, 1, ...), which broadcast with x (B, C, *spatial)."""
    shape = [1] * x.ndim
    shape[1] = -1
    return values.view(shape)
