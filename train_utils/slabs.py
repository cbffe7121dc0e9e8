"""One volume, or one large image, on several processes: each trains on a slab, with the results of a single process.

A slab is a range of the first spatial axis. It begins at a multiple of the factor that the poolings divide by, so that
poolings and transposed convolutions stay inside a slab. Convolutions need the border slices of the neighboring slabs,
norms the sums over all slabs, dropout the mask of the whole volume, and the loss the sums over a whole image.
Evaluation and prediction do not cut images: there the layers work as on one process.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from runtime.errors import SettingsError
from runtime.launch import SHARDING
from runtime.mesh import Mesh
from tasks.step_loss import StepLoss
from tasks.target import Target
from tasks.task import Task
from train_utils.compilation import compiles
from unet.blocks import channels_last
from unet.model import UNet
from unet.norms import GroupNorm, InstanceNorm, group_norm

FIRST_AXIS = 2  # the first spatial axis of (B, C, *spatial)
FLAG = "--processes-per-volume"
FEWEST_STRIDES = 2  # least length of a slab at the lowest level: neighbors need a border slice, and norms two values


class Slabs:
    """The cut of each volume into slabs, one for each process of a group.

    Args:
        divisor: the factor by which the first axis is divided on the way to the lowest level.

    Attributes:
        length: the first side of the volume that was cut last.
    """

    def __init__(self, mesh: Mesh, divisor: int) -> None:
        self.mesh = mesh
        self.divisor = divisor
        self.length = 0

    def rows(self, length: int) -> slice:
        """The range of this process's slab in a volume whose first side is `length`; the last slab takes the rest."""
        strides = length // self.divisor
        start = strides * self.mesh.slab // self.mesh.size * self.divisor
        end = strides * (self.mesh.slab + 1) // self.mesh.size * self.divisor
        return slice(start, length if self.mesh.is_last else end)

    def largest(self, length: int) -> int:
        """The number of rows of the largest slab of a volume whose first side is `length`."""
        strides = length // self.divisor
        most_strides = math.ceil(strides / self.mesh.size)
        return most_strides * self.divisor + length % self.divisor

    def cut(self, images: Tensor) -> Tensor:
        """This process's slab of images (B, C, *spatial)."""
        self.length = images.shape[FIRST_AXIS]
        return _laid_out_like(images, images[:, :, self.rows(self.length)])

    def cut_targets(self, targets: Target) -> Target:
        """This process's slab of targets (B, *spatial)."""
        rows = self.rows(targets.shape[1])
        return targets.strip(rows.start, rows.stop)


def check_slabs(accelerator: Accelerator, model: UNet, mesh: Mesh, shortest: int, sync_batchnorm: str) -> None:
    """Raise SettingsError if several processes cannot share a volume with this network.

    Args:
        shortest: the smallest first side of the training images at the network's input.
    """
    if mesh.size == 1:
        return
    config = model.config
    if config.encoder is not None:
        raise SettingsError(f"{FLAG} works with the plain U-Net only; give --encoder none")
    if accelerator.distributed_type in SHARDING:
        raise SettingsError(f"{FLAG} does not work with {accelerator.distributed_type.value}; use a profile of DDP")
    if compiles(accelerator):
        raise SettingsError(f"{FLAG} does not work with torch.compile; leave out --dynamo_backend")
    if config.upsample == "bilinear_aligned":
        raise SettingsError(f"{FLAG} does not work with --upsample bilinear_aligned, which looks at whole images")
    if sync_batchnorm == "off" and config.norm == "batch":
        raise SettingsError(f"{FLAG} needs batch norm over all slabs; leave out --sync-batchnorm off")
    divisor = config.divisors[0]
    fewest_slices = FEWEST_STRIDES * divisor * mesh.size
    if shortest < fewest_slices:
        raise SettingsError(
            f"{FLAG} {mesh.size} needs {fewest_slices} or more slices along the first axis,"
            f" {FEWEST_STRIDES * divisor} for each process, but training images have {shortest}; give a smaller number"
            " or a larger --crop-size"
        )


def split_network(model: nn.Module, slabs: Slabs) -> None:
    """Change the layers of a network in place: on slabs they then compute what they would compute on whole volumes."""
    if slabs.mesh.size == 1:
        return
    for name, layer in list(model.named_modules()):
        slab_layer = _slab_layer(layer, slabs)
        if slab_layer is not None:
            model.set_submodule(name, slab_layer)
    model.register_forward_pre_hook(partial(_cut_input, slabs))


def _cut_input(slabs: Slabs, model: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """A hook that, in training, replaces the network's input images by this process's slab of them."""
    return (slabs.cut(inputs[0]),) if model.training else inputs


def _slab_layer(layer: nn.Module, slabs: Slabs) -> nn.Module | None:
    """A layer with the same parameters that looks beyond its slab; None if this kind of layer need not do so."""
    classes: dict[type[nn.Module], type[nn.Module]] = {
        nn.Conv2d: SlabConv2d,
        nn.Conv3d: SlabConv3d,
        GroupNorm: SlabGroupNorm,
        InstanceNorm: SlabInstanceNorm,
        nn.Upsample: SlabUpsample,
        nn.Dropout: SlabDropout,
    }
    slab_class = classes.get(type(layer))
    if slab_class is None or (isinstance(layer, nn.Conv2d | nn.Conv3d) and layer.kernel_size[0] == 1):
        return None
    # the layer keeps its parameters, buffers and hooks; only its class changes
    slab_layer: Any = object.__new__(slab_class)
    slab_layer.__dict__ = layer.__dict__
    slab_layer.slabs = slabs
    return slab_layer


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


def new_step_loss(task: Task, strides: Sequence[Sequence[int]], slabs: Slabs) -> StepLoss:
    """The loss of a step on whole images, or on slabs of them."""
    if slabs.mesh.size == 1:
        return StepLoss(task, strides)
    return SlabLoss(task, strides, slabs)


class _SumOverSlabs(torch.autograd.Function):
    """The sum of values over the processes of a group; all of them use this sum in the same way."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mesh: Mesh) -> Tensor:
        ctx.size = mesh.size
        return mesh.sum(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.size, None  # the sum of the processes' gradients, which are equal


def _slices_beside(x: Tensor, slabs: Slabs, reach: int) -> tuple[Tensor | None, Tensor | None]:
    """The last `reach` slices of the slab before x (B, C, *spatial), and the first `reach` slices of the slab after."""
    mesh = slabs.mesh
    first_slices = None if mesh.is_first else x.narrow(FIRST_AXIS, 0, reach)
    last_slices = None if mesh.is_last else x.narrow(FIRST_AXIS, x.shape[FIRST_AXIS] - reach, reach)
    return mesh.exchange(first_slices, last_slices)


class _SlabConvolution(torch.autograd.Function):
    """A convolution of stride 1 whose input is the slab x and `kernel // 2` slices on either side of it.

    The backward pass puts the input and its borders together again: if that input were kept, it would be a second copy
    of x, which the layer before keeps already.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, slabs: Slabs) -> Tensor:
        reach = weight.shape[FIRST_AXIS] // 2
        before, behind = _slices_beside(x, slabs, reach)
        ctx.slabs = slabs
        ctx.bias_sizes = None if bias is None else list(bias.shape)
        ctx.save_for_backward(x, weight, before, behind)
        padded = _padded(before, x, behind, reach)
        return _convolution(padded, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, before, behind = ctx.saved_tensors
        reach = weight.shape[FIRST_AXIS] // 2
        padded = _padded(before, x, behind, reach)
        needs_gradient = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.bias_sizes is not None]
        ones = [1] * (weight.ndim - 2)
        zeros = [0] * (weight.ndim - 2)
        grad_padded, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
            grad, padded, weight, ctx.bias_sizes, ones, _padding(weight), ones, False, zeros, 1, needs_gradient
        )
        if not needs_gradient[0]:
            return None, grad_weight, grad_bias, None
        rows = x.shape[FIRST_AXIS]
        mesh = ctx.slabs.mesh
        to_previous = None if mesh.is_first else grad_padded.narrow(FIRST_AXIS, 0, reach)
        to_next = None if mesh.is_last else grad_padded.narrow(FIRST_AXIS, reach + rows, reach)
        from_previous, from_next = mesh.exchange(to_previous, to_next)
        grad_x = grad_padded.narrow(FIRST_AXIS, reach, rows)
        if from_previous is not None:
            grad_x.narrow(FIRST_AXIS, 0, reach).add_(from_previous)
        if from_next is not None:
            grad_x.narrow(FIRST_AXIS, rows - reach, reach).add_(from_next)
        return grad_x, grad_weight, grad_bias, None


def _padded(before: Tensor | None, x: Tensor, behind: Tensor | None, reach: int) -> Tensor:
    """x (B, C, *spatial) between its borders, zeros where the volume ends."""
    shape = list(x.shape)
    shape[FIRST_AXIS] = reach
    zeros = x.new_zeros(()).expand(shape)
    parts = [zeros if before is None else before, x, zeros if behind is None else behind]
    return _laid_out_like(x, torch.cat(parts, dim=FIRST_AXIS))


def _laid_out_like(x: Tensor, values: Tensor) -> Tensor:
    """The values in the memory format of x: it determines the kernels, and the order in which a mask is drawn."""
    return values.contiguous() if x.is_contiguous() else channels_last(values)


def _padding(weight: Tensor) -> list[int]:
    """The padding of a convolution whose input has borders along the first axis already."""
    return [0, *(side // 2 for side in weight.shape[FIRST_AXIS + 1 :])]


def _convolution(padded: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    convolve = F.conv2d if weight.ndim == 4 else F.conv3d
    return convolve(padded, weight, bias, padding=_padding(weight))


def _convolve_slab(layer: nn.Conv2d | nn.Conv3d, x: Tensor, slabs: Slabs) -> Tensor:
    """The output of a layer on a slab, in the type that autocast asks for."""
    weight = layer.weight
    bias = layer.bias
    device = x.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x = x.to(dtype)
        weight = weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    with torch.autocast(device, enabled=False):
        return _SlabConvolution.apply(x, weight, bias, slabs)


class SlabConv2d(nn.Conv2d):
    """A convolution that sees the border rows of the slabs beside its own."""

    slabs: Slabs

    def forward(self, x: Tensor) -> Tensor:
        return _convolve_slab(self, x, self.slabs) if self.training else super().forward(x)


class SlabConv3d(nn.Conv3d):
    """A convolution that sees the border slices of the slabs beside its own."""

    slabs: Slabs

    def forward(self, x: Tensor) -> Tensor:
        return _convolve_slab(self, x, self.slabs) if self.training else super().forward(x)


class SlabGroupNorm(GroupNorm):
    """Group norm over all slabs of a volume."""

    slabs: Slabs

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps, self.slabs.mesh.sum)


class SlabInstanceNorm(InstanceNorm):
    """Instance norm over all slabs of a volume."""

    slabs: Slabs

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        return group_norm(x, self.num_features, self.weight, self.bias, self.eps, self.slabs.mesh.sum)


class _Borders(torch.autograd.Function):
    """A slab x (B, C, *spatial) with one neighboring slice joined to either side.

    At the ends of the volume, the slab's own first or last slice is repeated, as interpolation does.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, slabs: Slabs) -> Tensor:
        ctx.mesh = slabs.mesh
        before, behind = _slices_beside(x, slabs, reach=1)
        if before is None:
            before = x.narrow(FIRST_AXIS, 0, 1)
        if behind is None:
            behind = x.narrow(FIRST_AXIS, x.shape[FIRST_AXIS] - 1, 1)
        return torch.cat([before, x, behind], dim=FIRST_AXIS)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows = grad.shape[FIRST_AXIS] - 2
        before = grad.narrow(FIRST_AXIS, 0, 1)
        behind = grad.narrow(FIRST_AXIS, rows + 1, 1)
        mesh = ctx.mesh
        to_previous = None if mesh.is_first else before
        to_next = None if mesh.is_last else behind
        from_previous, from_next = mesh.exchange(to_previous, to_next)
        grad_x = grad.narrow(FIRST_AXIS, 1, rows).clone()
        grad_x.narrow(FIRST_AXIS, 0, 1).add_(before if from_previous is None else from_previous)
        grad_x.narrow(FIRST_AXIS, rows - 1, 1).add_(behind if from_next is None else from_next)
        return grad_x, None


class SlabUpsample(nn.Upsample):
    """Interpolation that sees one slice of the slabs beside its own."""

    slabs: Slabs

    def forward(self, x: Tensor) -> Tensor:
        factor = int(self.scale_factor[0])
        if not self.training or factor == 1:
            return super().forward(x)
        upsampled = super().forward(_Borders.apply(x, self.slabs))
        return upsampled.narrow(FIRST_AXIS, factor, factor * x.shape[FIRST_AXIS])


class SlabDropout(nn.Dropout):
    """Dropout at the lowest level, which applies this slab's part of the whole volume's mask."""

    slabs: Slabs

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return super().forward(x)
        slabs = self.slabs
        shape = list(x.shape)
        shape[FIRST_AXIS] = slabs.length // slabs.divisor
        mask = F.dropout(_laid_out_like(x, x.new_ones(shape)), self.p)
        start = slabs.rows(slabs.length).start // slabs.divisor
        return x * mask.narrow(FIRST_AXIS, start, x.shape[FIRST_AXIS])
