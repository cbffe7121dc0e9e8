"""Norms of images and volumes that are faster than torch's, or that keep the input's type and format on CUDA too."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

SumSlabs = Callable[[Tensor], Tensor]


class BatchNorm3d(nn.BatchNorm3d):
    """`nn.BatchNorm3d`, bit for bit, by the kernels of images: torch 2.13 has no channels-last kernels for volumes."""

    def _check_input_dim(self, x: Tensor) -> None:
        """Accept any number of axes, since `forward` flattens two axes of a volume into one."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1:  # torch does not recognize the view of a single volume as channels-last
            return super().forward(x)
        return super().forward(x.flatten(3)).view_as(x)


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` whose output keeps a channels-last format and a 16-bit type on CUDA too."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        return super().forward(x)


class InstanceNorm(nn.InstanceNorm2d):
    """`nn.InstanceNorm2d`, also for volumes, whose output keeps a channels-last format on CUDA too."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return group_norm(x, self.num_features, self.weight, self.bias, self.eps)
        # not `F.instance_norm`: its check for a single value, which UNet's padding excludes, cannot be exported
        is_cudnn = torch.backends.cudnn.enabled
        return torch.instance_norm(x, self.weight, self.bias, None, None, True, self.momentum, self.eps, is_cudnn)


def group_norm(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, sum_slabs: SumSlabs | None = None
) -> Tensor:
    """`F.group_norm` of x (B, C, *spatial), in the type and memory format of x.

    On CUDA torch's function copies x to channels-first, and under autocast to float32: the next convolution has to copy
    it back. Here statistics and factors are at least float32, and every tensor as large as x has the type of x.

    Args:
        sum_slabs: if x is a slab of each volume, a function that adds up over the processes with the other slabs.
            Weight and bias then get the gradient of this slab.
    """
    with torch.autocast(x.device.type, enabled=False):
        return _GroupNorm.apply(x, groups, weight, bias, eps, sum_slabs)


class _GroupNorm(torch.autograd.Function):
    """Group norm with a backward pass that keeps only x, as torch's does; autograd's would keep float32 copies of x."""

    @staticmethod
    def forward(
        ctx, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, sum_slabs: SumSlabs | None
    ) -> Tensor:
        # first the statistics of each channel: along the sides of a channels-last x a GPU reads whole lines of memory
        axes = _spatial(x)
        if x.dtype.itemsize == 2:
            means = x.mean(axes, dtype=torch.float32)
            squares = torch.linalg.vector_norm(x, dim=axes, dtype=torch.float32) ** 2 / x[0, 0].numel()
            variances = (squares - means**2).clamp_min(0)  # the cancellation is smaller than the rounding of x
        else:
            variances, means = torch.var_mean(x, axes, correction=0)
        means = means.unflatten(1, (groups, -1))
        variances = variances.unflatten(1, (groups, -1))
        mean = means.mean(2, keepdim=True)  # (B, groups, 1), as are variance and rstd
        variance = variances.mean(2, keepdim=True) + means.var(2, correction=0, keepdim=True)
        ctx.pixels = x[0, 0].numel()
        ctx.sum_slabs = sum_slabs
        if sum_slabs is not None:
            mean, variance, ctx.pixels = _over_slabs(mean, variance, ctx.pixels, sum_slabs)
        rstd = (variance + eps).rsqrt()
        scale = rstd * weight.unflatten(0, (groups, -1))  # (B, groups, C / groups)
        ctx.save_for_backward(x, weight, mean, rstd)
        return _scale_and_shift(x, scale, bias.unflatten(0, (groups, -1)) - mean * scale)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        groups = mean.shape[1]
        # sums over each channel, (B, groups, C / groups): the gradient, and its product with the normalized x
        grads = grad.sum(_spatial(x), dtype=mean.dtype).unflatten(1, (groups, -1))
        product = grad.float() * x if x.dtype == torch.float16 else grad * x  # fp16 would overflow
        products = product.sum(_spatial(x), dtype=mean.dtype).unflatten(1, (groups, -1))
        products = (products - mean * grads) * rstd
        weights = weight.unflatten(0, (groups, -1))
        # x_grad is weights * grad minus its mean and minus its projection on the normalized x, times rstd
        means = torch.stack([(weights * products).mean(2, keepdim=True), (weights * grads).mean(2, keepdim=True)])
        if ctx.sum_slabs is not None:
            means = ctx.sum_slabs(means)
        product_mean, grad_mean = means
        slope = -product_mean * rstd**2 / ctx.pixels
        offset = -grad_mean * rstd / ctx.pixels - slope * mean
        x_grad = _scale_and_shift(x, slope.expand_as(grads), offset.expand_as(grads))
        x_grad.addcmul_(grad, _per_channel(rstd * weights, x))
        return x_grad, None, products.sum(0).flatten(), grads.sum(0).flatten(), None, None


def _over_slabs(mean: Tensor, variance: Tensor, pixels: int, sum_slabs: SumSlabs) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and number of pixels () of whole volumes, from the same three of a slab."""
    count = torch.full_like(mean, pixels, dtype=torch.float64)
    # sums in float64, since the square of the mean is subtracted again
    square = variance.double() + mean.double().square()
    count, total, square = sum_slabs(torch.stack([count, count * mean, count * square]))
    whole_mean = total / count
    whole_variance = (square / count - whole_mean.square()).clamp_min(0)
    return whole_mean.to(mean.dtype), whole_variance.to(mean.dtype), count.flatten()[0].to(mean.dtype)


def _scale_and_shift(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """x * scale + shift in the type of x, computed in the type of scale and shift (B, groups, C / groups)."""
    scale = _per_channel(scale, x)
    shift = _per_channel(shift, x)
    if torch.compiler.is_compiling():  # compiled code converts without a copy, but accepts no channels-last `out`
        return torch.addcmul(shift, x, scale).to(x.dtype)
    return torch.addcmul(shift, x, scale, out=torch.empty_like(x))  # the kernel converts too: no float32 copy


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """values (B, groups, C / groups) as (B, C, 1, ...), to go with x (B, C, *spatial)."""
    new_axes = [None] * (x.ndim - 2)
    return values.flatten(1)[(..., *new_axes)]


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))
