"""The position of each landmark from its map."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_utils.point_states import FOUND
from runtime.device import upload, widest_float
from runtime.scratch import release

if TYPE_CHECKING:
    from tasks.landmarks.loss import Landmarks

MAP_BYTES = 2**28  # of the maps that are read at once


class PredictedPoints(NamedTuple):
    """The columns of a prediction of landmarks, all arrays or all tensors.

    Args:
        shares: (K, n), the positions as shares of the image's sides.
        presence: (K,), the probability that each point is in the image.
        confidence: (K,), the share of the map's weight that lies around the position.
    """

    shares: np.ndarray | Tensor
    presence: np.ndarray | Tensor
    confidence: np.ndarray | Tensor

    @classmethod
    def from_prediction(cls, prediction: np.ndarray | Tensor) -> "PredictedPoints":
        """The columns of a prediction (K, n + 2)."""
        return cls(prediction[:, :-2], prediction[:, -2], prediction[:, -1])

    def positions(self, size: Sequence[int]) -> np.ndarray:
        """The positions (K, n) in pixels of an image of `size`; the center of its first pixel is 0."""
        return self.shares * np.array(size) - 0.5

    def found_positions(self, size: Sequence[int]) -> np.ndarray:
        """The `positions`, NaN of points that are predicted not to be in the image."""
        return np.where((self.presence >= FOUND)[:, None], self.positions(size), np.nan)


def read_points(maps: np.ndarray, task: "Landmarks") -> np.ndarray:
    """The prediction (K, n + 2) from the maps (K, *spatial) of an image, a few of which are read at once."""
    maps_at_once = max(1, MAP_BYTES // maps[0].nbytes)
    points = []
    for first in range(0, len(maps), maps_at_once):
        some = slice(first, first + maps_at_once)
        points.append(read_maps(torch.from_numpy(maps[some]), task, some).numpy())
        release(maps)
    return np.concatenate(points)


def read_maps(maps: Tensor, task: "Landmarks", points: slice = slice(None)) -> Tensor:
    """The prediction (K, n + 2) of `points` from their whole maps of logits (K, *spatial)."""
    radius = max(2, math.ceil(2 * task.sigma))
    weights = maps.flatten(1).logsumexp(dim=1)
    peaks, indices = maps.flatten(1).max(dim=1)
    pixels = _unravel(indices, maps.shape[1:])
    patches = _around(maps, pixels, radius)
    dtype = widest_float(maps.device)
    size = upload(torch.tensor(maps.shape[1:], dtype=dtype), maps.device)
    shares = (pixels + _offsets(patches, peaks, radius).to(size) + 0.5) / size
    confidence = (patches.flatten(1).logsumexp(dim=1) - weights).exp().clamp_max(1)
    is_always_there = torch.zeros(task.outputs, dtype=torch.bool)
    is_always_there[list(task.always_there)] = True
    presence = (weights - task.nowhere).sigmoid()
    presence = presence.masked_fill(upload(is_always_there[points], presence.device), 1.0)
    return torch.cat([shares, presence[:, None], confidence[:, None]], dim=1)


def _around(maps: Tensor, pixels: Tensor, radius: int) -> Tensor:
    """The logits (K, side, ...) around a pixel (K, n) of each map; -inf beyond the image."""
    axes = maps.ndim - 1
    span = torch.arange(-radius, radius + 1, device=maps.device)
    index = [torch.arange(len(maps), device=maps.device).view(-1, *[1] * axes)]
    is_inside = torch.ones((), dtype=torch.bool, device=maps.device)
    for axis, side in enumerate(maps.shape[1:]):
        shape = [len(maps)] + [1] * axes
        shape[1 + axis] = len(span)
        coordinates = (pixels[:, axis, None] + span).view(shape)
        is_inside = is_inside & (coordinates >= 0) & (coordinates < side)
        index.append(coordinates.clamp(0, side - 1))
    return torch.where(is_inside, maps[tuple(index)], -torch.inf)


def _offsets(patches: Tensor, peaks: Tensor, radius: int) -> Tensor:
    """The offsets (K, n) float64 from the highest pixel to the top of the parabola that fits the logits around it.

    A pixel counts as much as the square of its weight in the map (Guo 2011, doi.org/10.1109/MSP.2011.941846); pixels
    beyond the image do not count.

    Args:
        patches: (K, side, ...), the logits around the highest pixel of each map.
        peaks: (K,), the highest logits.
    """
    axes = patches.ndim - 1
    device = patches.device
    if widest_float(device) != torch.float64:
        device = torch.device("cpu")
    span = torch.arange(-radius, radius + 1, dtype=torch.float64, device=device)
    grid = torch.cartesian_prod(*[span] * axes).view(-1, axes)
    logits = (patches.flatten(1) - peaks[:, None]).to(device).double()
    weights = (2 * logits).exp().nan_to_num(0, 0, 0) * (grid.square().sum(dim=1) <= radius**2)
    logits = logits.nan_to_num(0, 0, 0)
    rows, columns = torch.triu_indices(axes, axes, device=device)
    products = grid[:, rows] * grid[:, columns]
    terms = torch.cat([torch.ones_like(grid[:, :1]), grid, products], dim=1)
    # weighted least squares, one system for each point; the host need not wait to learn which are singular
    weighted = weights[:, :, None] * terms
    solution, _ = torch.linalg.solve_ex(terms.T @ weighted, weighted.mT @ logits[:, :, None])
    gradient = solution[:, 1 : 1 + axes]
    halves = torch.zeros(len(solution), axes, axes, dtype=torch.float64, device=device)
    halves[:, rows, columns] = solution[:, 1 + axes :, 0]
    curvature = halves + halves.mT
    factor, problem = torch.linalg.cholesky_ex(-curvature)
    offsets = torch.cholesky_solve(gradient, factor).squeeze(2)
    has_top = (problem == 0)[:, None] & offsets.isfinite()
    return torch.where(has_top, offsets, 0).clamp(-1, 1)


def _unravel(indices: Tensor, size: Sequence[int]) -> Tensor:
    """The pixels (K, n) of flat indices (K,); torch's `unravel_index` makes the host wait for a GPU."""
    coordinates = []
    for side in reversed(size):
        coordinates.append(indices % side)
        indices = indices // side
    return torch.stack(coordinates[::-1], dim=1)
