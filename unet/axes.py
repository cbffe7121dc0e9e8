"""Kernels and strides of each level, from the size of a pixel along each axis."""

from collections.abc import Sequence
from typing import NamedTuple

Axes = tuple[tuple[int, ...], ...]  # one tuple for each level, with one number for each axis
MAX_DEPTH = 5  # the most steps down, unless the caller sets a depth
SMALLEST_SIDE = 4  # pooling leaves at least this many pixels of a patch's side


class NetworkAxes(NamedTuple):
    """The fields of UNetConfig that the data decide."""

    dims: int
    kernels: Axes = ()
    strides: Axes = ()


def level_axes(spacing: Sequence[float], patch: Sequence[int], depth: int | None = None) -> tuple[Axes, Axes]:
    """Kernels and strides of UNetConfig for patches whose spacing differs between the axes.

    Each step down pools only the axes whose spacing is less than twice the finest, among the axes that are long enough
    to be pooled, so that deeper levels become isotropic. Along an axis whose spacing is at least twice the finest,
    convolutions have size 1; from the first level on where the spacing is less than twice the finest, they have size 3.
    There is at least one step down, and there are at most `depth` (by default MAX_DEPTH).

    Args:
        spacing: the size of a pixel along each axis.
        patch: the number of pixels along each axis.
        depth: the most steps down; None for MAX_DEPTH.
    """
    kernels = [_kernel(spacing, kernel_above=[1] * len(spacing))]
    strides: list[tuple[int, ...]] = []
    while len(strides) < (depth or MAX_DEPTH):
        long_enough = [side // 2 >= SMALLEST_SIDE for side in patch]
        if not any(long_enough):
            if strides:
                break
            long_enough = [True] * len(patch)  # a U-Net needs at least one step down
        stride = _stride(spacing, long_enough)
        spacing = [length * factor for length, factor in zip(spacing, stride, strict=True)]
        patch = [side // factor for side, factor in zip(patch, stride, strict=True)]
        kernels.append(_kernel(spacing, kernels[-1]))
        strides.append(stride)
    return tuple(kernels), tuple(strides)


def _kernel(spacing: Sequence[float], kernel_above: Sequence[int]) -> tuple[int, ...]:
    """The size of a level's convolutions: 3 along fine axes, along the others the size at the level above."""
    sizes = []
    for length, size_above in zip(spacing, kernel_above, strict=True):
        is_fine = length < 2 * min(spacing)
        sizes.append(3 if is_fine else size_above)
    return tuple(sizes)


def _stride(spacing: Sequence[float], long_enough: Sequence[bool]) -> tuple[int, ...]:
    """The factors of a step down: 2 along pooled axes, 1 along the others."""
    finest = min(length for length, is_long in zip(spacing, long_enough, strict=True) if is_long)
    factors = []
    for length, is_long in zip(spacing, long_enough, strict=True):
        is_pooled = is_long and length < 2 * finest
        factors.append(2 if is_pooled else 1)
    return tuple(factors)
