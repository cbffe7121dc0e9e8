"""The layers of a network whose volumes are cut into slabs; on slabs they compute what others compute on volumes."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from train_utils.slabs.slabs import FIRST_AXIS, Slabs, laid_out_like
from train_utils.sync_batchnorm import SynchronizedBatchNorm
from unet.norms import GroupNorm, InstanceNorm, group_norm

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


def cut_input(slabs: Slabs, network: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """A hook that, in training, replaces the network's input images by this process's slab of them."""
    if not network.training:
        return inputs
    return (slabs.cut(inputs[0]),)


def slab_layer(layer: nn.Module, slabs: Slabs) -> nn.Module | None:
    """A layer with the same parameters that looks beyond its slab; None if this kind of layer need not do so."""
    classes: dict[type[nn.Module], type[nn.Module]] = {
        nn.Conv2d: SlabConv2d,
        nn.Conv3d: SlabConv3d,
        GroupNorm: SlabGroupNorm,
        InstanceNorm: SlabInstanceNorm,
    }
    slab_class = classes.get(type(layer))
    if slab_class is None:
        is_known = isinstance(layer, STAYS_INSIDE) or any(layer.children())
        assert is_known, f"slabs do not know what {type(layer).__name__} looks at"
        return None
    if isinstance(layer, nn.Conv2d | nn.Conv3d) and layer.kernel_size[0] == 1:
        return None
    # the layer keeps its parameters, buffers and hooks; only its class changes
    changed: Any = object.__new__(slab_class)
    changed.__dict__ = layer.__dict__
    changed.slabs = slabs
    return changed


class SlabLayer(nn.Module):
    """A layer that, in training, computes its slab of what the layer would compute on whole volumes."""

    slabs: Slabs

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.slab_forward(x)
        return super().forward(x)

    def slab_forward(self, x: Tensor) -> Tensor:
        """The slab of the output that belongs to the slab x (B, C, *spatial) of the input."""
        raise NotImplementedError


class SlabConvolution(SlabLayer):
    """A convolution that sees the border slices of the slabs beside its own."""

    weight: Tensor
    bias: Tensor | None

    def slab_forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        bias = self.bias
        device = x.device.type
        if torch.is_autocast_enabled(device):  # the type that autocast asks for
            dtype = torch.get_autocast_dtype(device)
            x = x.to(dtype)
            weight = weight.to(dtype)
            if bias is not None:
                bias = bias.to(dtype)
        with torch.autocast(device, enabled=False):
            return _ConvolutionWithBorders.apply(x, weight, bias, self.slabs)


class SlabConv2d(SlabConvolution, nn.Conv2d):
    """A convolution of images."""


class SlabConv3d(SlabConvolution, nn.Conv3d):
    """A convolution of volumes."""


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
        padded = _join_borders(before, x, behind, reach)
        return _convolution(padded, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, before, behind = ctx.saved_tensors
        reach = weight.shape[FIRST_AXIS] // 2
        padded = _join_borders(before, x, behind, reach)
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
        if from_previous is not None:
            grad_x.narrow(FIRST_AXIS, 0, reach).add_(from_previous)
        if from_next is not None:
            grad_x.narrow(FIRST_AXIS, rows - reach, reach).add_(from_next)
        return grad_x, grad_weight, grad_bias, None


def _join_borders(before: Tensor | None, x: Tensor, behind: Tensor | None, reach: int) -> Tensor:
    """x (B, C, *spatial) between its borders, zeros where the volume ends."""
    shape = list(x.shape)
    shape[FIRST_AXIS] = reach
    zeros = x.new_zeros(()).expand(shape)
    if before is None:
        before = zeros
    if behind is None:
        behind = zeros
    return laid_out_like(x, torch.cat([before, x, behind], dim=FIRST_AXIS))


def _padding(weight: Tensor) -> list[int]:
    """The padding of a convolution whose input has borders along the first axis already."""
    return [0, *(side // 2 for side in weight.shape[FIRST_AXIS + 1 :])]


def _convolution(padded: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    convolve = F.conv2d if weight.ndim == 4 else F.conv3d
    return convolve(padded, weight, bias, padding=_padding(weight))


class SlabGroupNorm(SlabLayer, GroupNorm):
    """Group norm over all slabs of a volume."""

    def slab_forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps, self.slabs.sum)


class SlabInstanceNorm(SlabLayer, InstanceNorm):
    """Instance norm over all slabs of a volume."""

    def slab_forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.num_features, self.weight, self.bias, self.eps, self.slabs.sum)
