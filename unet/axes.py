"""Kernels and strides of each level, from how large a pixel is along each axis."""

from collections.abc import Sequence
from typing import NamedTuple

Axes = tuple[tuple[int, ...], ...]  # of each level a number for each axis
MAX_DEPTH = 5  # that the size of the patches may choose
SMALLEST_SIDE = 4  # that pooling may leave of a patch


class NetworkAxes(NamedTuple):
    """What of an architecture follows from the data: the fields of UNetConfig of these names."""

    dims: int
    kernels: Axes = ()
    strides: Axes = ()


def level_axes(spacing: Sequence[float], patch: Sequence[int], depth: int | None = None) -> tuple[Axes, Axes]:
    """Kernels and strides of UNetConfig for patches whose spacing differs between the axes.

    Each step down pools only the axes whose spacing is less than twice the finest, among the axes that are long enough
    to be pooled, so that deeper levels become isotropic. Along an axis whose spacing is at least twice the finest,
    convolutions have size 1, from the first level where it is less, size 3. There are at most `depth` steps, MAX_DEPTH
    by default, and at least one.

    Args:
        spacing, patch: size of a pixel, and number of pixels, along each axis.
    """
    strides: list[tuple[int, ...]] = []
    kernels = [tuple(3 if length < 2 * min(spacing) else 1 for length in spacing)]
    while len(strides) < (depth or MAX_DEPTH):
        long_enough = [side // 2 >= SMALLEST_SIDE for side in patch]
        if not any(long_enough):
            if strides:
                break
            long_enough = [True] * len(patch)  # a U-Net has a step down
        finest = min(length for length, is_long in zip(spacing, long_enough, strict=True) if is_long)
        pooled = [is_long and length < 2 * finest for length, is_long in zip(spacing, long_enough, strict=True)]
        stride = tuple(2 if is_pooled else 1 for is_pooled in pooled)
        spacing = [length * factor for length, factor in zip(spacing, stride, strict=True)]
        patch = [side // factor for side, factor in zip(patch, stride, strict=True)]
        near = [length < 2 * min(spacing) for length in spacing]
        kernels.append(tuple(3 if is_near else size for size, is_near in zip(kernels[-1], near, strict=True)))
        strides.append(stride)
    return tuple(kernels), tuple(strides)
