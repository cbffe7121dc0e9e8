"""Batch norm over the micro-batches of all processes."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from data_utils.loading.batch_sampler import BatchSplit
from runtime.console import say

BATCH_NORMS = (nn.BatchNorm2d, nn.BatchNorm3d)


def synchronize_batchnorm(accelerator: Accelerator, model: nn.Module, how: str, split: BatchSplit) -> nn.Module:
    """The model with batch norm over all processes' micro-batches if `how` is `on` or `auto`, not if it is `off`.

    Prints a line where batch norm sees fewer images at a time than a step has, or fillers among them: its statistics
    then depend on the launch. accelerate does not convert by itself.
    """
    norms = {}
    for name, m in model.named_modules():
        if isinstance(m, BATCH_NORMS) and m.training:  # the norms of a frozen encoder stay in evaluation mode
            norms[name] = m
    if not norms:
        return model
    images = split.micro_batch_size
    if how != "off" and accelerator.num_processes > 1:
        for name, norm in norms.items():
            model.set_submodule(name, SynchronizedBatchNorm.of(norm))
        images *= accelerator.num_processes
    if images != split.batch_size:
        fillers = ""
        if split.slots > split.batch_size:
            fillers = f", {split.slots - split.batch_size} of them repeated"
        say(
            f"batch norm sees {images} images at a time{fillers}, not the {split.batch_size} of a step, so results"
            " depend on the launch; with --norm group they do not"
        )
    return model


class SynchronizedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm of images or volumes whose batch is that of all processes, each with as many values as the others.

    Equal in numbers to torch's SyncBatchNorm, which takes batches of different sizes, and for that makes the host wait
    three times in each layer (torch 2.13). Here nothing waits, and any device and backend will do.
    """

    @classmethod
    def of(cls, norm: nn.BatchNorm2d | nn.BatchNorm3d) -> "SynchronizedBatchNorm":
        """A layer with the parameters, buffers and settings of `norm`."""
        synchronized = cls.__new__(cls)
        synchronized.__dict__ = norm.__dict__
        return synchronized

    def _check_input_dim(self, x: Tensor) -> None:
        """Any number of axes will do."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        self.num_batches_tracked.add_(1)
        y, mean, var, count = _Normalize.apply(x, self.weight, self.bias, self.eps)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (count / (count - 1)), self.momentum)
        return y


class _Normalize(torch.autograd.Function):
    """Each channel of x (B, C, *spatial), normalized over all processes (Ioffe & Szegedy 2015)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, int]:
        """The output, mean and variance (C,) over all processes, and the number of values behind these."""
        stats = torch.stack(_statistics(x, eps))
        world = dist.get_world_size()
        gathered = stats.new_empty(world * 2, x.shape[1])
        dist.all_gather_single(gathered, stats)
        means, variances = gathered.view(world, 2, -1).unbind(dim=1)
        mean = means.mean(dim=0)
        var = (variances + (means - mean).square()).mean(dim=0)
        ctx.count = world * x.numel() // x.shape[1]
        ctx.eps = eps
        ctx.save_for_backward(x, weight, mean, var)
        ctx.mark_non_differentiable(mean, var)
        # the kernel of evaluation normalizes by the mean and variance that it is given
        output = F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)
        return output, mean, var, ctx.count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *unused: Any) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mean, var = ctx.saved_tensors
        invstd = (var + ctx.eps).rsqrt()
        if x.is_cuda:
            # torch's SyncBatchNorm calls the same kernels (read in torch 2.13, nn/modules/_functions.py); they have not
            # run here: `--trace-steps` on two GPUs would show them beside the formula below
            sum_grad, sum_grad_x, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
                grad, x, mean, invstd, weight, True, True, True
            )
            sums = torch.stack([sum_grad, sum_grad_x])
            dist.all_reduce(sums)
            sum_grad, sum_grad_x = sums
            world = dist.get_world_size()
            counts = torch.full((world,), ctx.count // world, dtype=torch.int32, device=x.device)
            grad_input = torch.batch_norm_backward_elemt(grad, x, mean, invstd, weight, sum_grad, sum_grad_x, counts)
            return grad_input, grad_weight, grad_bias, None
        # evaluation's kernel takes mean and variance for constants: what depends on them is taken off its gradient
        nothing = mean.new_empty(0)
        grad_input, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, mean, var, nothing, nothing, False, ctx.eps, [True, True, True]
        )
        sums = torch.stack([grad_weight, grad_bias])
        dist.all_reduce(sums)
        of_weight, of_bias = sums / ctx.count * weight * invstd
        slope = of_weight * invstd
        grad_input -= torch.addcmul(_column(of_bias - slope * mean, x), x, _column(slope, x))
        return grad_input, grad_weight, grad_bias, None


def _statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and variance (C,) of each channel, in at least float32."""
    if x.is_cuda:  # one pass over half precision, without a copy in float32, by torch's source
        mean, invstd = torch.batch_norm_stats(x, eps)
        return mean, invstd.pow(-2) - eps
    values = x if x.dtype == torch.float64 else x.float()
    axes = [axis for axis in range(x.ndim) if axis != 1]
    var, mean = torch.var_mean(values, dim=axes, correction=0)
    return mean, var


def _column(values: Tensor, x: Tensor) -> Tensor:
    """(C,) as (1, C, 1, ...), to go with x (B, C, *spatial)."""
    shape = [1] * x.ndim
    shape[1] = -1
    return values.view(shape)
