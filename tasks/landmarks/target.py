"""Points of an image as arrays: their positions, and whether they are present, absent or unknown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_utils.point_states import OUTSIDE, PRESENT
from data_utils.target import Target
from runtime.device import upload_like, widest_float


@dataclass(frozen=True, eq=False)
class PointTarget(Target):
    """K points of an image with n axes, in pixels of the network's input; the center of the first pixel is at 0.

    Args:
        points: (K, n) float64, along the axes of the image: (y, x) or (z, y, x).
        states: (K,) int64.
        size: (n,) int64, the size of the image; it stays on the CPU, since shapes are needed there.
        unit: (n,) float64, the length of a pixel in the unit of the scores: pixels of the file, or mm.
    """

    points: Any
    states: Any
    size: Any
    unit: Any

    def at(self, index: Any) -> "PointTarget":
        return self.map(lambda array: array[index])

    @property
    def shape(self) -> tuple[int, ...]:
        if self.size.ndim == 1:
            return tuple(self.size.tolist())
        return (len(self.size), *self.size[0].tolist())

    def map_with_unknown(self, function: Callable[[Any, int], Any]) -> "PointTarget":
        return self  # points are no labels

    def crop(self, window: Sequence[slice]) -> "PointTarget":
        starts = [side.start for side in window]
        shape = [len(range(length)[side]) for length, side in zip(self.shape, window, strict=True)]
        size = np.array(shape, np.int64)
        points = self.points - starts
        is_inside = ((points >= -0.5) & (points < size - 0.5)).all(axis=-1)
        states = self.states.copy()
        states[(states == PRESENT) & ~is_inside] = OUTSIDE
        return replace(self, points=points, states=states, size=size)

    def pad(self, shape: Sequence[int]) -> "PointTarget":
        return replace(self, size=np.array(shape, np.int64))

    def strip(self, start: int, stop: int) -> "PointTarget":
        points = self.points.clone()
        points[..., 0] -= start
        size = self.size.clone()
        size[:, 0] = stop - start
        return replace(self, points=points, size=size)

    def for_loss(self) -> "PointTarget":
        return self

    def move(
        self,
        move_labels: Callable[[Tensor, int], Tensor],
        move_points: Callable[[Tensor], Tensor],
    ) -> "PointTarget":
        points = move_points(self.points)
        last = upload_like(self.shape[1:], points) - 0.5
        is_inside = ((points >= -0.5) & (points < last)).all(dim=-1)
        states = self.states.masked_fill((self.states == PRESENT) & ~is_inside, OUTSIDE)
        return replace(self, points=points, states=states)

    def locations(self) -> list[Any]:
        pixels = self.points.round().astype(int)
        return [pixel[None] for pixel, state in zip(pixels, self.states, strict=True) if state == PRESENT]

    def to(self, device: torch.device, non_blocking: bool = False) -> "PointTarget":
        dtype = widest_float(device)
        target = replace(self, points=self.points.to(dtype), unit=self.unit.to(dtype))
        return replace(super(PointTarget, target).to(device, non_blocking), size=self.size)
