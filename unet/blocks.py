"""The blocks of the U-Net's figure: two convolutions, a step down, a step up, the last 1 x 1 convolution."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.checkpoint import checkpoint

Network = TypeVar("Network", bound=nn.Module)

NORMS = ("batch", "group", "instance")
BLOCKS = ("plain", "residual")
UPSAMPLINGS = ("transpose", "bilinear", "bilinear_aligned")


def norm_layer(norm: str, channels: int) -> nn.Module:
    """Normalisation over `channels`; 32 groups (Wu & He 2018), fewer where a group would have a single channel."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return GroupNorm(math.gcd(max(channels // 2, 1), 32), channels)
    return InstanceNorm(channels, affine=True)


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` that leaves channels-last and 16-bit inputs as they are on CUDA too."""

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps) if x.is_cuda else super().forward(x)


class InstanceNorm(nn.InstanceNorm2d):
    """`nn.InstanceNorm2d` that leaves channels-last inputs as they are on CUDA too."""

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.num_features, self.weight, self.bias, self.eps) if x.is_cuda else super().forward(x)


def group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """`F.group_norm` of x (B, C, H, W), in the type and memory format of x.

    On CUDA torch's copies x to NCHW, and under autocast to float32: the next convolution has to copy it back. Here
    statistics and factors are at least float32, and nothing as large as x has another type than x.
    """
    with torch.autocast(x.device.type, enabled=False):
        return _GroupNorm.apply(x, groups, weight, bias, eps)


class _GroupNorm(torch.autograd.Function):
    """What autograd would derive keeps float32 copies of x; this keeps x alone, as torch's own does."""

    @staticmethod
    def forward(ctx, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        # of each channel first: over height and width of a channels-last x a GPU reads whole lines of memory
        if x.dtype.itemsize == 2:
            means = x.mean((2, 3), dtype=torch.float32)
            squares = torch.linalg.vector_norm(x, dim=(2, 3), dtype=torch.float32) ** 2 / x[0, 0].numel()
            variances = (squares - means**2).clamp_min(0)  # what cancels is less than x was rounded by
        else:
            variances, means = torch.var_mean(x, (2, 3), correction=0)
        means, variances = means.unflatten(1, (groups, -1)), variances.unflatten(1, (groups, -1))
        mean = means.mean(2, keepdim=True)  # (B, groups, 1), as rstd
        rstd = (variances.mean(2, keepdim=True) + means.var(2, correction=0, keepdim=True) + eps).rsqrt()
        scale = rstd * weight.unflatten(0, (groups, -1))  # (B, groups, C / groups)
        ctx.save_for_backward(x, weight, mean, rstd)
        return _scale_and_shift(x, scale, bias.unflatten(0, (groups, -1)) - mean * scale)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        groups, pixels = mean.shape[1], x[0, 0].numel()
        # over each channel, (B, groups, C / groups): the gradient, and its product with the normalised x
        grads = grad.sum((2, 3), dtype=mean.dtype).unflatten(1, (groups, -1))
        product = grad.float() * x if x.dtype == torch.float16 else grad * x  # fp16 would overflow
        products = product.sum((2, 3), dtype=mean.dtype).unflatten(1, (groups, -1))
        products = (products - mean * grads) * rstd
        weights = weight.unflatten(0, (groups, -1))
        # weights * grad minus its mean and minus its projection on the normalised x, times rstd
        slope = -(weights * products).mean(2, keepdim=True) * rstd**2 / pixels
        offset = -(weights * grads).mean(2, keepdim=True) * rstd / pixels - slope * mean
        x_grad = _scale_and_shift(x, slope.expand_as(grads), offset.expand_as(grads))
        x_grad.addcmul_(grad, _per_channel(rstd * weights))
        return x_grad, None, products.sum(0).flatten(), grads.sum(0).flatten(), None


def _scale_and_shift(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """x * scale + shift in the type of x, computed in that of scale and shift (B, groups, C / groups)."""
    scale, shift = _per_channel(scale), _per_channel(shift)
    if torch.compiler.is_compiling():  # what is compiled converts on the way, but takes no channels-last `out`
        return torch.addcmul(shift, x, scale).to(x.dtype)
    return torch.addcmul(shift, x, scale, out=torch.empty_like(x))  # so does the kernel: no float32 copy


def _per_channel(values: Tensor) -> Tensor:
    return values.flatten(1)[..., None, None]


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
    # torch.compile takes no contexts such as these: it has to leave the block as it is
    run = torch.compiler.disable(checkpoint)
    return run(block, *inputs, use_reentrant=False, context_fn=partial(_contexts, block))


@contextmanager
def recomputing(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Within, each block is `recomputed` wherever it is called; not to be compiled."""
    for block in blocks:
        plain, contexts = partial(type(block).forward, block), partial(_contexts, block)
        block.forward = partial(checkpoint, plain, use_reentrant=False, context_fn=contexts)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _contexts(block: nn.Module) -> tuple[AbstractContextManager, AbstractContextManager]:
    """Of a block's first forward pass and of its second one."""
    return nullcontext(), frozen_statistics(block)


class DoubleConv(nn.Module):
    """(3 x 3 convolution, norm, ReLU) twice; padded, so height and width stay.

    A `residual` block adds its input, by a 1 x 1 convolution where channels differ, before the last ReLU (He et al.
    2015, arXiv:1512.03385).
    """

    def __init__(
        self, in_channels: int, out_channels: int, norm: str, block: str, mid_channels: int | None = None
    ) -> None:
        super().__init__()
        mid_channels = mid_channels or out_channels
        self.shortcut: nn.Module | None = None
        if block == "residual":
            same = in_channels == out_channels
            self.shortcut = nn.Identity() if same else nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=False)
        self.conv1 = nn.Conv2d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False)
        self.norm1 = norm_layer(norm, mid_channels)
        self.conv2 = nn.Conv2d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.norm2 = norm_layer(norm, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        return F.relu(y if self.shortcut is None else y + self.shortcut(x), inplace=True)


class Down(nn.Module):
    """Halve height and width (rounding down), then convolve."""

    def __init__(self, in_channels: int, out_channels: int, norm: str, block: str) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.conv = DoubleConv(in_channels, out_channels, norm, block)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.pool(x))


class Up(nn.Module):
    """Double height and width, pad to the skip connection's size, concatenate it, then convolve.

    `transpose` learns the upsampling; `bilinear` interpolates, as does `bilinear_aligned` with aligned corners (what
    Pytorch-UNet's bilinear checkpoints were trained with; it looks at the whole image, so tiles never match exactly).
    """

    def __init__(
        self, in_channels: int, skip_channels: int, out_channels: int, norm: str, upsample: str, block: str
    ) -> None:
        super().__init__()
        if upsample == "transpose":
            self.up = nn.ConvTranspose2d(in_channels, out_channels, kernel_size=2, stride=2)
            self.conv = DoubleConv(out_channels + skip_channels, out_channels, norm, block)
        else:
            aligned = upsample == "bilinear_aligned"
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=aligned)
            mid_channels = min(skip_channels, 2 * out_channels)
            self.conv = DoubleConv(in_channels + skip_channels, out_channels, norm, block, mid_channels)

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
