"""Positions of landmarks from the maps of a network: to a part of a pixel, with presence and confidence.

Modules: tasks/landmarks/decode.py.
"""

import math
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from support.landmarks import THREE, random_points
from torch import Tensor

from inference.views import average
from tasks.landmarks import decode as landmarks
from tasks.landmarks.loss import Landmarks
from tasks.prediction import decode_strips


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


def read(maps: torch.Tensor, task: Landmarks = THREE) -> torch.Tensor:
    """The prediction (K, n + 2) of maps (1, K, *size)."""
    return task.labels_of_variants(task.decode(maps))[0][0]


@pytest.mark.parametrize("size", [(40, 51), (13, 20, 22)])
def test_places_of_drawn_gaussians_are_read_to_a_twentieth_of_a_pixel(size):
    points = random_points(size, seed=3, count=1)
    prediction = read(gaussian_maps(points, size))
    places = prediction[:, : len(size)] * torch.tensor(size) - 0.5
    assert (places - points[0]).abs().max() < 0.05
    assert (prediction[:, -2:] > 0.5).all()


def fitted_top(logits: np.ndarray, pixel: tuple[int, ...], radius: int) -> np.ndarray:
    """The top of the parabola that fits a map around a pixel, counted by squared weights, with NumPy's solvers."""
    indices = np.stack(np.meshgrid(*map(np.arange, logits.shape), indexing="ij"), axis=-1)
    offsets = (indices - pixel).reshape(-1, len(pixel)).astype(float)
    is_near = (offsets**2).sum(axis=1) <= radius**2
    offsets = offsets[is_near]
    values = logits.reshape(-1)[is_near]
    weights = np.exp(values - values.max())
    pairs = list(combinations_with_replacement(range(len(pixel)), 2))
    products = np.stack([offsets[:, first] * offsets[:, second] for first, second in pairs], axis=1)
    terms = np.concatenate([np.ones((len(offsets), 1)), offsets, products], axis=1)
    solution = np.linalg.lstsq(terms * weights[:, None], values * weights, rcond=None)[0]
    gradient, factors = np.split(solution[1:], [len(pixel)])
    curvature = np.zeros((len(pixel), len(pixel)))
    for (first, second), factor in zip(pairs, factors, strict=True):
        curvature[first, second] += factor
        curvature[second, first] += factor
    return pixel - np.linalg.solve(curvature, gradient)


@pytest.mark.parametrize(("sigma", "radius"), [(2.0, 4), (1.3, 3), (0.5, 2)])
@pytest.mark.parametrize("size", [(20, 24), (9, 12, 14)])
def test_a_place_is_the_top_of_the_parabola_that_fits_the_map_within_two_sigmas(size, sigma, radius):
    points = random_points(size, seed=5, count=1)
    noise = 0.05 * torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    maps = gaussian_maps(points, size) + noise
    places = read(maps, replace(THREE, sigma=sigma))[:, : len(size)] * torch.tensor(size) - 0.5
    for logits, place in zip(maps[0].numpy(), places.numpy(), strict=True):
        pixel = np.unravel_index(logits.argmax(), size)
        np.testing.assert_allclose(place, fitted_top(logits, pixel, radius), rtol=0, atol=1e-9)


def test_a_place_is_the_highest_pixel_where_the_map_around_it_has_no_top():
    maps = torch.full((1, 3, 20, 20), -12.0)
    maps[:, :, 10, 8:13] = torch.tensor([0.99, 0.0, 1.0, 0.0, 0.9])  # bent upwards along x
    assert read(maps)[:, :2].tolist() == [[10.5 / 20, 10.5 / 20]] * 3


def test_a_place_is_at_most_a_pixel_from_the_highest_one():
    maps = gaussian_maps(torch.tensor([[[-3.0, 10.0], [23.0, 11.0], [9.0, -3.0]]]), (20, 24))
    places = read(maps)[:, :2] * torch.tensor([20, 24]) - 0.5
    expected = torch.tensor([[-1.0, 10.0], [20.0, 11.0], [9.0, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(places, expected, atol=0.01, rtol=0)


def test_a_place_is_the_first_of_the_highest_pixels():
    maps = torch.full((1, 3, 20, 20), -60.0, dtype=torch.float64)
    maps[:, :, 5, 6] = maps[:, :, 15, 3] = 0
    assert read(maps)[:, :2].tolist() == [[5.5 / 20, 6.5 / 20]] * 3


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_maps_of_a_broken_network_are_read_without_an_error(value):
    maps = torch.zeros(1, 3, 20, 20)
    maps[:, 1] = value
    maps[0, 2, 5, 5] = value
    assert read(maps).shape == (3, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maps_are_read_in_single_precision(dtype):
    maps = gaussian_maps(random_points((40, 51), seed=3, count=1), (40, 51)).to(dtype)
    places = read(maps.double())
    assert places.dtype == torch.float64
    torch.testing.assert_close(read(maps).double(), places, atol=1e-4, rtol=0)


def test_a_point_that_no_training_image_lacks_is_always_there():
    maps = torch.full((1, 3, 20, 20), -12.0)
    left, right, tail = read(maps, replace(THREE, always_there=(1,)))[:, -2].tolist()
    assert right == 1.0
    assert max(left, tail) < 0.01


@pytest.fixture(params=[1, 7, 20])
def two_peaks(request) -> np.ndarray:
    """(3, 4): what is read, in strips, of three maps with weights 3 at (5, 6) and 1 at (15, 12)."""
    maps = torch.full((3, 20, 20), -60.0, dtype=torch.float64)
    maps[:, 5, 6] = math.log(3)
    maps[:, 15, 12] = 0
    return decode_strips(THREE, maps.split(request.param, dim=1), (20, 20), "a").labels


def test_presence_and_confidence_are_shares_of_the_weight_that_is_not_nowhere_and_around_the_place(two_peaks):
    assert two_peaks[0, 3] == pytest.approx(3 / 4)
    expected = [5.5 / 20, 6.5 / 20, 4 / (4 + math.exp(0.5))]
    np.testing.assert_allclose(two_peaks[:, :3], [expected] * 3)
    assert (two_peaks == two_peaks[0]).all()


def test_maps_of_several_views_are_multiplied():
    logits = torch.randn(1, 3, 4, 4)
    assert average(THREE, [logits, 3 * logits]).allclose(2 * logits)


def test_maps_that_are_read_in_parts_know_which_points_are_always_there(monkeypatch):
    monkeypatch.setattr(landmarks, "MAP_BYTES", 1)
    task = Landmarks(("a", "b", "c"), partners=(0, 1, 2), always_there=(1,))
    prediction, _ = task.labels_and_objects(np.full((3, 20, 20), -12.0, np.float32))
    presence = prediction[:, -2].tolist()
    assert presence[1] == 1.0
    assert presence[0] < 0.5
