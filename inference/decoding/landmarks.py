"""The position of each landmark from its map, read strip by strip."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inference.decoding.decoder import NO_EXTRAS, Decoder, Strip, download_strip
from runtime.device import full_precision, upload, widest_float
from tasks.landmarks import Landmarks
from tasks.point_scores import FOUND


class PredictedPoints(NamedTuple):
    """The columns of a prediction of `LandmarkDecoder`.

    Args:
        shares: (K, n), the positions as shares of the image's sides.
        presence: (K,), the probability that each point is in the image.
        confidence: (K,), the share of the map's weight that lies around the position.
    """

    shares: np.ndarray
    presence: np.ndarray
    confidence: np.ndarray

    @classmethod
    def from_prediction(cls, prediction: np.ndarray) -> "PredictedPoints":
        """The columns of a prediction (K, n + 2)."""
        return cls(prediction[:, :-2], prediction[:, -2], prediction[:, -1])

    @property
    def is_found(self) -> np.ndarray:
        """Whether each point is predicted to be in the image, (K,) bool."""
        return self.presence >= FOUND

    def positions(self, size: Sequence[int]) -> np.ndarray:
        """The positions (K, n) in pixels of an image of `size`; the center of its first pixel is 0."""
        return self.shares * np.array(size) - 0.5


class LandmarkDecoder(Decoder[Landmarks]):
    """Reads points (K, n + 2): the position of each as shares of the sides, 0 to 1; its presence; its confidence.

    The position is the top of a parabola fitted to the logits around the highest pixel: the logarithm of a Gaussian is
    one. Presence is the probability of the map as a whole against "nowhere", 1 for a point that no training
    image lacked; confidence is the share of the map's weight that lies around the position.
    """

    dtype = "float64"
    reading = (
        "a map for each point, whose largest logit marks the position; the softmax over the map and one more logit,"
        " `nowhere` of the task in the config, says how likely the point is in the image, where it is none of the"
        " task's points that are `always_there`; a model whose task mirrors is"
        " best asked for the image and its mirror image, and the logits averaged, `partners` changed back"
    )
    at_image_size = False

    def __init__(self, task: Landmarks, scratch: Path | None = None) -> None:
        super().__init__(task, scratch)
        self._finder = PeakFinder(task)

    def decode(self, logits: Tensor, dim: int = 0) -> Tensor:
        raise NotImplementedError("a landmark is read from its whole map, by `PeakFinder`")

    def probabilities(self, logits: Tensor, dim: int = 0) -> Tensor:
        return (logits - self.task.nowhere).sigmoid()  # the point is at a pixel, and not nowhere

    def logits_from_probabilities(self, probabilities: Tensor, dim: int = 0) -> Tensor:
        return probabilities.logit(eps=torch.finfo(probabilities.dtype).eps) + self.task.nowhere

    def finiteness(self, logits: Tensor) -> dict[str, Tensor]:
        return {}  # of logits that are no numbers the prediction is none either

    def mean_of_views(self, views: Sequence[Tensor], dim: int) -> Tensor:
        # the geometric mean of the maps: the arithmetic one would follow the map of the highest weight alone
        return torch.stack(views).mean(dim=0)

    def add_on_device(self, logits: Tensor) -> None:
        self._finder.add(logits[0])

    def finish_on_device(self, answers: Sequence[Tensor]) -> Tensor:
        prediction = self._finder.finish()
        self._finder = PeakFinder(self.task)  # for the next image
        return prediction[None]

    def add(self, logits: Tensor, *, probabilities: bool, extras: Mapping[str, Tensor] = NO_EXTRAS) -> Strip:
        self._finder.add(logits)
        return download_strip(None, self.probabilities(logits) if probabilities else None, extras)

    def finish(self) -> Iterator[Strip]:
        yield Strip(self._finder.finish().cpu().numpy())


class PeakFinder:
    """Reads the maps (K, *spatial) of an image strip by strip, and keeps only their last rows."""

    def __init__(self, task: Landmarks) -> None:
        self.nowhere = task.nowhere
        self.is_always_there = torch.zeros(task.outputs, dtype=torch.bool)
        self.is_always_there[list(task.always_there)] = True
        self.radius = max(2, math.ceil(2 * task.sigma))
        self._rows_read = 0
        self._rows_searched = 0  # rows that were searched for the highest pixel; the rows around each had been read
        self._last_rows: Tensor | None = None  # of the logits
        self._peaks = Tensor()  # (K,) the highest logit
        self._pixels = Tensor()  # (K, n) the position of the highest logit
        self._patches = Tensor()  # (K, side, ...) the logits around it
        self._weights = Tensor()  # (K,) log of the weight of the map

    def add(self, logits: Tensor) -> None:
        """Read the next rows of the maps, (K, n, ...)."""
        logits = full_precision(logits)
        weights = logits.flatten(1).logsumexp(dim=1)
        rows = logits
        if self._last_rows is None:
            self._weights = weights
            self._peaks = torch.full_like(weights, -torch.inf)
            self._pixels = weights.new_zeros((len(logits), logits.ndim - 1), dtype=torch.int64)
            self._patches = logits.new_zeros((len(logits), *[2 * self.radius + 1] * (logits.ndim - 1)))
        else:
            self._weights = torch.logaddexp(self._weights, weights)
            rows = torch.cat([self._last_rows, logits], dim=1)
        self._rows_read += logits.shape[1]
        self._search(rows, self._rows_read - self.radius)
        self._last_rows = rows[:, -2 * self.radius :]

    def finish(self) -> Tensor:
        """The prediction (K, n + 2)."""
        rows = self._last_rows
        assert rows is not None, "an image has logits"
        self._search(rows, self._rows_read)
        dtype = widest_float(self._peaks.device)
        size = upload(torch.tensor([self._rows_read, *rows.shape[2:]], dtype=dtype), self._peaks.device)
        shares = (self._pixels + self._offsets().to(size) + 0.5) / size
        around = self._patches.flatten(1).logsumexp(dim=1)
        confidence = (around - self._weights).exp().clamp_max(1)
        presence = (self._weights - self.nowhere).sigmoid()
        presence = presence.masked_fill(upload(self.is_always_there, presence.device), 1.0)
        return torch.cat([shares, presence[:, None], confidence[:, None]], dim=1)

    def _search(self, rows: Tensor, stop: int) -> None:
        """Look for higher pixels above row `stop` of the image; `rows` (K, n, ...) end with the last one read."""
        start = self._rows_read - rows.shape[1]  # the first of `rows` in the image
        if stop <= self._rows_searched:
            return
        candidates = rows[:, self._rows_searched - start : stop - start]
        peaks, indices = candidates.flatten(1).max(dim=1)
        pixels = _unravel(indices, candidates.shape[1:])
        pixels[:, 0] += self._rows_searched
        self._rows_searched = stop
        is_higher = peaks > self._peaks
        patches = self._around(rows, start, pixels)
        other_axes = [1] * (rows.ndim - 1)
        self._patches = torch.where(is_higher.view(-1, *other_axes), patches, self._patches)
        self._pixels = torch.where(is_higher[:, None], pixels, self._pixels)
        self._peaks = torch.where(is_higher, peaks, self._peaks)

    def _around(self, rows: Tensor, start: int, pixels: Tensor) -> Tensor:
        """The logits (K, side, ...) around a pixel (K, n) of each map; -inf beyond the image."""
        axes = rows.ndim - 1
        padded = F.pad(rows, [self.radius] * (2 * axes), value=-torch.inf)
        span = torch.arange(2 * self.radius + 1, device=rows.device)
        index = [torch.arange(len(rows), device=rows.device).view(-1, *[1] * axes)]
        for axis in range(axes):
            coordinates = pixels[:, axis, None] + span
            if axis == 0:
                coordinates = coordinates - start
            shape = [len(rows)] + [1] * axes
            shape[1 + axis] = len(span)
            index.append(coordinates.view(shape))
        return padded[tuple(index)]

    def _offsets(self) -> Tensor:
        """The offsets (K, n) float64 from the highest pixel to the top of the parabola that fits the logits around it.

        A pixel counts as much as the square of its weight in the map (Guo 2011, doi.org/10.1109/MSP.2011.941846);
        pixels beyond the image do not count.
        """
        axes = self._pixels.shape[1]
        device = self._patches.device
        if widest_float(device) != torch.float64:
            device = torch.device("cpu")
        span = torch.arange(-self.radius, self.radius + 1, dtype=torch.float64, device=device)
        grid = torch.cartesian_prod(*[span] * axes).view(-1, axes)
        logits = (self._patches.flatten(1) - self._peaks[:, None]).to(device).double()
        weights = (2 * logits).exp().nan_to_num(0, 0, 0) * (grid.square().sum(dim=1) <= self.radius**2)
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
