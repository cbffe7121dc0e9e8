"""Tasks of a few landmarks, and their targets."""

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


def batch_of_image(target: PointTarget) -> PointTarget:
    """A batch of one image."""
    return PointTarget.stack([target.map(torch.from_numpy)])


def random_points(size: tuple[int, ...], seed: int = 0, count: int = 2) -> Tensor:
    """(count, 3, n): three points within each image."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(count, 3, len(size), generator=generator, dtype=torch.float64)
    return shares * torch.tensor(size, dtype=torch.float64) - 0.5
