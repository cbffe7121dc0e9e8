"""The blocks of the U-Net's figure: two convolutions, a step down, a step up, the last 1 x 1 convolution."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.checkpoint import checkpoint

Network = TypeVar("Network", bound=nn.Module)

NORMS = ("batch", "group", "instance")
UPSAMPLINGS = ("transpose", "bilinear", "bilinear_aligned")


def norm_layer(norm: str, channels: int) -> nn.Module:
    """Normalisation over `channels`; 32 groups (Wu & He 2018), fewer where a group would have a single channel."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(math.gcd(max(channels // 2, 1), 32), channels)
    return nn.InstanceNorm2d(channels, affine=True)


@contextmanager
def frozen_statistics(block: nn.Module) -> Iterator[None]:
    """Within, batch norm normalises by its batch and leaves its running statistics alone: they have seen it already."""
    norms = [module for module in block.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    kept = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, kept, strict=True):
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(batches)


def recomputed(block: nn.Module, *inputs: Tensor) -> Tensor:
    """`block(*inputs)` that keeps only its inputs, and runs again in the backward pass (Chen et al. 2016)."""
    return checkpoint(block, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), frozen_statistics(block)))


class DoubleConv(nn.Module):
    """(3 x 3 convolution, norm, ReLU) twice; padded, so height and width stay."""

    def __init__(self, in_channels: int, out_channels: int, norm: str, mid_channels: int | None = None) -> None:
        super().__init__()
        mid_channels = mid_channels or out_channels
        self.conv1 = nn.Conv2d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False)
        self.norm1 = norm_layer(norm, mid_channels)
        self.conv2 = nn.Conv2d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.norm2 = norm_layer(norm, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(x)), inplace=True)


class Down(nn.Module):
    """Halve height and width (rounding down), then convolve."""

    def __init__(self, in_channels: int, out_channels: int, norm: str) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.conv = DoubleConv(in_channels, out_channels, norm)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.pool(x))


class Up(nn.Module):
    """Double height and width, pad to the skip connection's size, concatenate it, then convolve.

    `transpose` learns the upsampling; `bilinear` interpolates, as does `bilinear_aligned` with aligned corners (what
    Pytorch-UNet's bilinear checkpoints were trained with; it looks at the whole image, so tiles never match exactly).
    """

    def __init__(self, in_channels: int, out_channels: int, norm: str, upsample: str) -> None:
        super().__init__()
        if upsample == "transpose":
            self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2)
            self.conv = DoubleConv(in_channels, out_channels, norm)
        else:
            aligned = upsample == "bilinear_aligned"
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=aligned)
            self.conv = DoubleConv(in_channels, out_channels, norm, mid_channels=in_channels // 2)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = self.up(x)
        height, width = skip.shape[-2] - x.shape[-2], skip.shape[-1] - x.shape[-1]
        if height or width:  # the pooling rounded an odd size down
            x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return self.conv(torch.cat([skip, x], dim=1))


class OutConv(nn.Module):
    """1 x 1 convolution from features to one logit per class."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, num_classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def fold_batch_norm(model: Network) -> Network:
    """Fold each batch norm of a model in evaluation mode into the convolution before it, in place."""
    for block in model.modules():
        if isinstance(block, DoubleConv) and isinstance(block.norm1, nn.BatchNorm2d):
            block.conv1, block.norm1 = fuse_conv_bn_eval(block.conv1, block.norm1), nn.Identity()
            block.conv2, block.norm2 = fuse_conv_bn_eval(block.conv2, block.norm2), nn.Identity()
    return model
