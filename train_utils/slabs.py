"""One volume, or one large image, on several processes: each trains on a slab, with the results of a single process.

A slab is a range of the first spatial axis. It begins at a multiple of the factor that the poolings divide by, so that
poolings and transposed convolutions stay inside a slab. Convolutions need the border slices of the neighboring slabs,
norms the sums over all slabs, and the loss the sums over a whole image.
Evaluation and prediction do not cut images: there the layers work as on one process.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from data_utils.target import Target
from runtime.distributed import COLLECTIVE_TIMEOUT
from runtime.errors import LaunchError, SettingsError
from runtime.launch import SHARDING
from tasks.step_loss import StepLoss
from tasks.task import Task
from train_utils.compilation import compiles
from train_utils.sync_batchnorm import SynchronizedBatchNorm
from unet.blocks import Conv3d, channels_last
from unet.model import UNet
from unet.norms import GroupNorm, InstanceNorm, group_norm

FLAG = "--processes-per-volume"
FIRST_AXIS = 2  # the first spatial axis of (B, C, *spatial)
FEWEST_STRIDES = 2  # least length of a slab at the lowest level: neighbors need a border slice, and norms two values


@dataclass(frozen=True)
class Slabs:
    """The slabs of a volume, and the place of this process among the processes that share it.

    Process `rank` of a launch has slab `rank % size` of the volumes of group `rank // size`, so neighbors on one
    machine share a volume.

    Args:
        size: the number of processes that share a volume.
        slab: the number of this process's slab in the volume, from 0.
        group: the number of this process's group, from 0.
        divisor: the factor by which the first axis is divided on the way to the lowest level.
    """

    size: int = 1
    slab: int = 0
    group: int = 0
    divisor: int = 1

    @classmethod
    def of_process(cls, process: int, processes: int, size: int, divisor: int = 1) -> "Slabs":
        """The place of one of `processes`. Raises LaunchError if `processes` is not a multiple of `size`."""
        if processes % size:
            raise LaunchError(
                f"--processes-per-volume {size} needs a multiple of {size} processes, but {processes} were started;"
                f" give --num_processes {math.ceil(processes / size) * size}"
            )
        return cls(size, process % size, process // size, divisor)

    def rows(self, length: int) -> slice:
        """The range of this process's slab in a volume whose first side is `length`; the last slab takes the rest."""
        strides = length // self.divisor
        start = strides * self.slab // self.size * self.divisor
        end = strides * (self.slab + 1) // self.size * self.divisor
        is_last = self.slab == self.size - 1
        return slice(start, length if is_last else end)

    def largest(self, length: int) -> int:
        """The number of rows of the largest slab of a volume whose first side is `length`."""
        strides = length // self.divisor
        most_strides = math.ceil(strides / self.size)
        return most_strides * self.divisor + length % self.divisor

    def sum(self, values: Tensor) -> Tensor:
        """The sum of the values over the processes that share a volume; no gradient."""
        total = values.detach().clone()
        dist.all_reduce(total, group=_process_group(self.size))
        return total

    def exchange(self, to_previous: Tensor, to_next: Tensor) -> tuple[Tensor, Tensor]:
        """Exchange tensors with the processes of the previous and the next slab.

        Returns:
            The tensors from the previous and from the next slab, each with the shape of the tensor sent there; zeros,
            and nothing is sent, at an end of the volume.
        """
        group = _process_group(self.size)
        operations = []
        results = []
        for outgoing, step in ((to_previous, -1), (to_next, 1)):
            received = torch.zeros_like(outgoing, memory_format=torch.contiguous_format)
            results.append(received)
            if 0 <= self.slab + step < self.size:
                neighbor = self.group * self.size + self.slab + step
                operations.append(dist.P2POp(dist.isend, outgoing.contiguous(), neighbor, group))
                operations.append(dist.P2POp(dist.irecv, received, neighbor, group))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        from_previous, from_next = results
        return from_previous, from_next


def laid_out_like(x: Tensor, values: Tensor) -> Tensor:
    """The values in the memory format of x: it determines the kernels."""
    return values.contiguous() if x.is_contiguous() else channels_last(values)


@cache
def _process_group(size: int) -> dist.ProcessGroup:
    """This process's group of `size` neighbors; all processes must call this at the same time."""
    group, _ = dist.new_subgroups(size, timeout=COLLECTIVE_TIMEOUT)
    return group


def check_slabs(accelerator: Accelerator, network: UNet, slabs: Slabs, shortest: int, sync_batchnorm: str) -> None:
    """Raise SettingsError if several processes cannot share a volume with this network.

    Args:
        shortest: the smallest first side of the training images at the network's input.
    """
    if slabs.size == 1:
        return
    config = network.config
    kind = accelerator.distributed_type
    problems = {
        "works with the plain U-Net only; give --encoder none": config.encoder is not None,
        f"does not work with {kind.value}; use a profile of DDP": kind in SHARDING,
        "does not work with torch.compile; leave out --dynamo_backend": compiles(accelerator),
        f"does not work with --upsample {config.upsample}; give transpose": config.upsample != "transpose",
        f"does not work with --dropout {config.dropout:g}; give 0": config.dropout > 0,
        "needs batch norm over all slabs; leave out --sync-batchnorm off": (
            sync_batchnorm == "off" and config.norm == "batch"
        ),
    }
    for problem, is_present in problems.items():
        if is_present:
            raise SettingsError(f"{FLAG} {problem}")
    fewest_slices = FEWEST_STRIDES * slabs.divisor * slabs.size
    if shortest < fewest_slices:
        raise SettingsError(
            f"{FLAG} {slabs.size} needs {fewest_slices} or more slices along the first axis,"
            f" {FEWEST_STRIDES * slabs.divisor} for each process, but training images have {shortest}; give a smaller"
            " number or a larger --crop-size"
        )


def split_volumes(network: UNet, task: Task, slabs: Slabs) -> StepLoss:
    """Let the processes of a group share each volume, and return the loss that goes with it.

    The network's layers are changed in place: on slabs they then compute what they would compute on whole volumes.
    """
    if slabs.size == 1:
        return StepLoss(task, network.head_strides)
    for layer in network.modules():
        look_beyond(layer, slabs)
    network.register_forward_pre_hook(partial(cut_input, slabs))
    return SlabLoss(task, network.head_strides, slabs)


def cut_input(slabs: Slabs, network: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """A hook that, in training, replaces the network's input images by this process's slab of them."""
    if not network.training:
        return inputs
    (images,) = inputs
    rows = slabs.rows(images.shape[FIRST_AXIS])
    return (laid_out_like(images, images[:, :, rows]),)


def look_beyond(layer: nn.Module, slabs: Slabs) -> None:
    """Let a layer compute, in training, its slab of what it would compute on whole volumes, if it need look beyond."""
    compute = LOOKS_BEYOND.get(type(layer))
    if compute is None:
        is_known = isinstance(layer, STAYS_INSIDE) or any(layer.children())
        assert is_known, f"slabs do not know what {type(layer).__name__} looks at"
    elif getattr(layer, "kernel_size", (3,))[0] > 1:
        layer.forward = partial(_forward, layer, compute, slabs)  # type: ignore[method-assign]


def _forward(layer: nn.Module, compute: Callable[[Any, Tensor, Slabs], Tensor], slabs: Slabs, x: Tensor) -> Tensor:
    if layer.training:
        return compute(layer, x, slabs)
    return type(layer).forward(layer, x)


def convolve_slab(layer: nn.Conv2d | nn.Conv3d, x: Tensor, slabs: Slabs) -> Tensor:
    """A convolution of the slab x (B, C, *spatial) that sees the border slices of the slabs beside it."""
    weight = layer.weight
    bias = layer.bias
    device = x.device.type
    if torch.is_autocast_enabled(device):  # the type that autocast asks for
        dtype = torch.get_autocast_dtype(device)
        x = x.to(dtype)
        weight = weight.to(dtype)
        if bias is not None:
            bias = bias.to(dtype)
    with torch.autocast(device, enabled=False):
        return _ConvolutionWithBorders.apply(x, weight, bias, slabs)


def normalize_slab(layer: GroupNorm | InstanceNorm, x: Tensor, slabs: Slabs) -> Tensor:
    """Group norm or instance norm over all slabs of a volume."""
    groups = layer.num_groups if isinstance(layer, GroupNorm) else layer.num_features
    return group_norm(x, groups, layer.weight, layer.bias, layer.eps, slabs.sum)


LOOKS_BEYOND: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv2d: convolve_slab,
    Conv3d: convolve_slab,
    GroupNorm: normalize_slab,
    InstanceNorm: normalize_slab,
}
STAYS_INSIDE = (  # layers that need nothing from beyond their slab, or add up over all processes already
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.Dropout,
    nn.Identity,
    nn.ModuleList,
    SynchronizedBatchNorm,
)


class _ConvolutionWithBorders(torch.autograd.Function):
    """A convolution of stride 1 whose input is the slab x and `kernel // 2` slices on either side of it.

    The backward pass puts the input and its borders together again: if that input were kept, it would be a second copy
    of x, which the layer before keeps already.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, slabs: Slabs) -> Tensor:
        reach = weight.shape[FIRST_AXIS] // 2
        first_slices = x.narrow(FIRST_AXIS, 0, reach)
        last_slices = x.narrow(FIRST_AXIS, x.shape[FIRST_AXIS] - reach, reach)
        before, behind = slabs.exchange(first_slices, last_slices)
        ctx.slabs = slabs
        ctx.bias_sizes = None
        if bias is not None:
            ctx.bias_sizes = list(bias.shape)
        ctx.save_for_backward(x, weight, before, behind)
        convolve = F.conv2d if weight.ndim == 4 else F.conv3d
        return convolve(_join_borders(before, x, behind), weight, bias, padding=_padding(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, before, behind = ctx.saved_tensors
        reach = weight.shape[FIRST_AXIS] // 2
        padded = _join_borders(before, x, behind)
        needs_gradient = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.bias_sizes is not None]
        ones = [1] * (weight.ndim - 2)
        zeros = [0] * (weight.ndim - 2)
        grad_padded, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
            grad, padded, weight, ctx.bias_sizes, ones, _padding(weight), ones, False, zeros, 1, needs_gradient
        )
        if not needs_gradient[0]:
            return None, grad_weight, grad_bias, None
        rows = x.shape[FIRST_AXIS]
        to_previous = grad_padded.narrow(FIRST_AXIS, 0, reach)
        to_next = grad_padded.narrow(FIRST_AXIS, reach + rows, reach)
        from_previous, from_next = ctx.slabs.exchange(to_previous, to_next)
        grad_x = grad_padded.narrow(FIRST_AXIS, reach, rows)
        grad_x.narrow(FIRST_AXIS, 0, reach).add_(from_previous)
        grad_x.narrow(FIRST_AXIS, rows - reach, reach).add_(from_next)
        return grad_x, grad_weight, grad_bias, None


def _join_borders(before: Tensor, x: Tensor, behind: Tensor) -> Tensor:
    """x (B, C, *spatial) between its borders."""
    return laid_out_like(x, torch.cat([before, x, behind], dim=FIRST_AXIS))


def _padding(weight: Tensor) -> list[int]:
    """The padding of a convolution whose input has borders along the first axis already."""
    return [0, *(side // 2 for side in weight.shape[FIRST_AXIS + 1 :])]


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
        return counts if self.slabs.slab == 0 else torch.zeros_like(counts)

    def sums(self, logits: Tensor, targets: Target) -> Tensor:
        """(T,): the sum of each term over whole images, from the slabs of all processes."""
        slab_sums = self._partial(logits, targets)
        flat = torch.cat([values.flatten() for values in slab_sums])
        totals = _SumOverSlabs.apply(flat, self.slabs).split([values.numel() for values in slab_sums])
        image_sums = [total.view_as(values) for total, values in zip(totals, slab_sums, strict=True)]
        return self.task.finish(tuple(image_sums), targets)

    def share_from_rendered(self, logits: Tensor | Sequence[Tensor], targets: Target, counts: Tensor) -> Tensor:
        """This process's share of the loss: an equal part of the value that the processes of a group have computed."""
        rows = self.slabs.rows(targets.shape[1])
        return super().share_from_rendered(logits, targets.strip(rows.start, rows.stop), counts) / self.slabs.size


class _SumOverSlabs(torch.autograd.Function):
    """The sum of values over the processes of a group; all of them use this sum in the same way."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, slabs: Slabs) -> Tensor:
        ctx.size = slabs.size
        return slabs.sum(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.size, None  # the sum of the processes' gradients, which are equal
