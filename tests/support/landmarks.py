"""Tasks of a few landmarks, their targets, and what a network and a decoder say of them."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tasks.landmarks.loss import Landmarks
from tasks.landmarks.target import PointTarget

THREE = Landmarks(names=("left", "right", "tail"), sigma=2.0, nowhere=0.5, partners=(1, 0, 2))
TWO = Landmarks(names=("a", "b"), partners=(0, 1))


def batch_of_points(points: Tensor, states: list[list[int]], size: tuple[int, ...]) -> PointTarget:
    """A batch of points (B, K, n)."""
    count, _, axes = points.shape
    return PointTarget(
        points=points.double(),
        states=torch.tensor(states),
        size=torch.tensor([size] * count),
        unit=torch.ones(count, axes, dtype=torch.float64),
    )


def image_points(points: list[list[float]], states: list[int], size: tuple[int, int]) -> PointTarget:
    """The points (K, 2) of one image, as they are read."""
    target = Landmarks(tuple(map(str, points))).unknown_target(size)
    return replace(target, points=np.array(points), states=np.array(states))


def batch_of_image(target: PointTarget) -> PointTarget:
    """A batch of one image."""
    return PointTarget.stack([target.map(torch.from_numpy)])


def random_points(size: tuple[int, ...], seed: int = 0, count: int = 2) -> Tensor:
    """(count, 3, n): three points within each image."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(count, 3, len(size), generator=generator, dtype=torch.float64)
    return shares * torch.tensor(size, dtype=torch.float64) - 0.5


def gaussian_maps(points: Tensor, size: tuple[int, ...], sigma: float = 2.0) -> Tensor:
    """Logits (B, K, *size) whose weights are a Gaussian at each of the points (B, K, n), on a floor."""
    logits = torch.zeros(*points.shape[:2], *size, dtype=torch.float64)
    for axis, side in enumerate(size):
        ones = [1] * len(size)
        ones[axis] = side
        positions = torch.arange(side, dtype=torch.float64).view(1, 1, *ones)
        center = points[:, :, axis].view(*points.shape[:2], *[1] * len(size))
        logits = logits - 0.5 * ((positions - center) / sigma) ** 2
    return torch.logaddexp(logits, torch.full_like(logits, -9.0))


def point_prediction(places: list[list[float]], presence: list[float], size: tuple[int, int]) -> Tensor:
    """(1, K, 4) as a decoder gives it."""
    shares = (torch.tensor(places, dtype=torch.float64) + 0.5) / torch.tensor(size)
    return torch.cat([shares, torch.tensor([presence]).T.double(), torch.ones(len(places), 1)], dim=1)[None]
