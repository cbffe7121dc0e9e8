"""The blocks of the U-Net's figure: two convolutions, a step down, a step up, the last convolution of size 1.

Images and volumes use the same blocks: the length of a block's kernel is its number of spatial axes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.checkpoint import checkpoint

from unet.norms import BatchNorm3d, GroupNorm, InstanceNorm

Network = TypeVar("Network", bound=nn.Module)
Sides = tuple[int, ...]  # a number for each spatial axis
Block = Callable[..., nn.Module]  # of in_channels, out_channels, kernel and mid_channels: one of BLOCKS with its norm

UPSAMPLINGS = ("transpose", "bilinear", "bilinear_aligned")


class Conv3d(nn.Conv3d):
    """A convolution of volumes whose weights have the right gradient in bf16 on CPUs too.

    There oneDNN (torch 2.13) returns memory that nobody wrote to where it pads a volume of one or two slices itself.
    """

    def forward(self, x: Tensor) -> Tensor:
        margin, *other_padding = self.padding
        if torch.is_autocast_enabled("cpu") and x.device.type == "cpu" and x.shape[2] <= 2 and margin:
            padded = F.pad(x, (0, 0, 0, 0, margin, margin))
            return F.conv3d(padded, self.weight, self.bias, self.stride, (0, *other_padding))
        return super().forward(x)


class Layers(NamedTuple):
    """The layers of torch for one number of spatial axes."""

    conv: type[nn.Conv2d | nn.Conv3d]
    transposed_conv: type[nn.ConvTranspose2d | nn.ConvTranspose3d]
    max_pool: type[nn.MaxPool2d | nn.MaxPool3d]
    batch_norm: type[nn.BatchNorm2d | nn.BatchNorm3d]
    interpolation: str
    memory_format: torch.memory_format


LAYERS = {  # by the number of axes: 2 for images, 3 for volumes
    2: Layers(nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d, nn.BatchNorm2d, "bilinear", torch.channels_last),
    3: Layers(Conv3d, nn.ConvTranspose3d, nn.MaxPool3d, BatchNorm3d, "trilinear", torch.channels_last_3d),
}


def channels_last(x: Tensor) -> Tensor:
    """x (B, C, *spatial) in the memory format in which convolutions are fastest."""
    return x.contiguous(memory_format=LAYERS[x.ndim - 2].memory_format)


NORMS: dict[str, Callable[[int, int], nn.Module]] = {  # --norm: of a number of channels and of axes
    "batch": lambda channels, dims: LAYERS[dims].batch_norm(channels),
    # 32 groups (Wu & He 2018), fewer if a group would have a single channel
    "group": lambda channels, dims: GroupNorm(math.gcd(max(channels // 2, 1), 32), channels),
    "instance": lambda channels, dims: InstanceNorm(channels, affine=True),
}


class DoubleConv(nn.Module):
    """(Convolution, norm, ReLU) twice; padding keeps each side's length.

    Args:
        kernel: size of the convolutions along each axis, 1 or 3.
        is_residual: add the input before the last ReLU (He et al. 2015, arXiv:1512.03385). If the numbers of channels
            differ, it first passes a convolution of size 1.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: Sides,
        mid_channels: int | None = None,
        *,
        norm: str,
        is_residual: bool = False,
    ) -> None:
        super().__init__()
        mid_channels = mid_channels or out_channels
        dims = len(kernel)
        padding = tuple(size // 2 for size in kernel)
        conv = LAYERS[dims].conv
        self.shortcut: nn.Module | None = None
        if is_residual and in_channels == out_channels:
            self.shortcut = nn.Identity()
        elif is_residual:
            self.shortcut = conv(in_channels, out_channels, kernel_size=1, bias=False)
        self.conv1 = conv(in_channels, mid_channels, kernel, padding=padding, bias=False)
        self.norm1 = NORMS[norm](mid_channels, dims)
        self.conv2 = conv(mid_channels, out_channels, kernel, padding=padding, bias=False)
        self.norm2 = NORMS[norm](out_channels, dims)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        if self.shortcut is not None:
            y = y + self.shortcut(x)
        return F.relu(y, inplace=True)


BLOCKS: dict[str, Block] = {"plain": DoubleConv, "residual": partial(DoubleConv, is_residual=True)}  # --block


class Down(nn.Module):
    """Divide each side by the stride along its axis (rounding down), then convolve."""

    def __init__(self, in_channels: int, out_channels: int, block: Block, kernel: Sides, stride: Sides) -> None:
        super().__init__()
        self.pool = LAYERS[len(kernel)].max_pool(stride)
        self.conv = block(in_channels, out_channels, kernel)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.pool(x))


class Up(nn.Module):
    """Multiply each side by the stride, pad to the skip connection's size, concatenate it, then convolve.

    `transpose` learns the upsampling. `bilinear` interpolates, volumes trilinearly. `bilinear_aligned` interpolates
    with aligned corners, as Pytorch-UNet's bilinear checkpoints were trained; the interpolation then depends on the
    size of the whole image, so tiles never match exactly.
    """

    def __init__(
        self,
        in_channels: int,
        skip_channels: int,
        out_channels: int,
        block: Block,
        upsample: str,
        kernel: Sides,
        stride: Sides,
    ) -> None:
        super().__init__()
        layers = LAYERS[len(kernel)]
        if upsample == "transpose":
            self.up = layers.transposed_conv(in_channels, out_channels, kernel_size=stride, stride=stride)
            self.conv = block(out_channels + skip_channels, out_channels, kernel)
        else:
            aligned = upsample == "bilinear_aligned"
            self.up = nn.Upsample(scale_factor=stride, mode=layers.interpolation, align_corners=aligned)
            mid_channels = min(skip_channels, 2 * out_channels)
            self.conv = block(in_channels + skip_channels, out_channels, kernel, mid_channels)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        pads: list[int] = []
        for skip_side, side in zip(skip.shape[2:], x.shape[2:], strict=True):
            missing = skip_side - side
            of_side = [missing // 2, missing - missing // 2]
            pads = of_side + pads  # the last axis comes first
        if any(pads) or torch.jit.is_tracing():  # the pooling rounded a side down; a graph is for all sizes
            x = F.pad(x, pads)
        return self.conv(torch.cat([skip, x], dim=1))


class OutConv(nn.Module):
    """Convolution of size 1 from features to one logit per class."""

    def __init__(self, in_channels: int, num_classes: int, dims: int) -> None:
        super().__init__()
        self.conv = LAYERS[dims].conv(in_channels, num_classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def fold_batch_norm(model: Network) -> Network:
    """Fold each batch norm of a model in evaluation mode into the convolution before it, in place."""
    for block in model.modules():
        if isinstance(block, DoubleConv) and isinstance(block.norm1, nn.BatchNorm2d | nn.BatchNorm3d):
            block.conv1 = fuse_conv_bn_eval(block.conv1, block.norm1)
            block.norm1 = nn.Identity()
            block.conv2 = fuse_conv_bn_eval(block.conv2, block.norm2)
            block.norm2 = nn.Identity()
    return model


@contextmanager
def recompute_blocks(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """In this context each block that is called runs again in the backward pass (Chen et al. 2016, arXiv:1604.06174).

    Do not compile the blocks.
    """
    for block in blocks:
        forward = partial(type(block).forward, block)
        contexts = partial(_contexts, block)
        block.forward = partial(checkpoint, forward, use_reentrant=False, context_fn=contexts)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _contexts(block: nn.Module) -> tuple[AbstractContextManager, AbstractContextManager]:
    """The contexts of a block's first forward pass and of its second one."""
    return nullcontext(), frozen_statistics(block)


@contextmanager
def frozen_statistics(block: nn.Module) -> Iterator[None]:
    """In this context, batch norm normalizes by its batch and does not update its running statistics again."""
    norms = [module for module in block.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    statistics = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, statistics, strict=True):
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(batches)
