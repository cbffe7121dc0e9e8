"""Positions of landmarks from the maps of a network: to a part of a pixel, in strips, with presence and confidence.

Modules: inference/decoding/landmarks.py.
"""

import math
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from support.landmarks import THREE, gaussian_maps, random_points

from inference.decoding.landmarks import LandmarkDecoder
from inference.decoding.views import average, swap_sides


@pytest.mark.parametrize("size", [(40, 51), (13, 20, 22)])
@pytest.mark.parametrize("length", [1, 3, 50])
def test_places_of_drawn_gaussians_are_read_to_a_twentieth_of_a_pixel(size, length):
    points = random_points(size, seed=3, count=1)
    decoder = LandmarkDecoder(THREE)
    for strip in gaussian_maps(points, size).split(length, dim=2):
        assert decoder.add_on_device(strip) is None
    prediction = decoder.finish_on_device(())[0]
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
    decoder = LandmarkDecoder(replace(THREE, sigma=sigma))
    decoder.add_on_device(maps)
    places = decoder.finish_on_device(())[0, :, : len(size)] * torch.tensor(size) - 0.5
    for logits, place in zip(maps[0].numpy(), places.numpy(), strict=True):
        pixel = np.unravel_index(logits.argmax(), size)
        np.testing.assert_allclose(place, fitted_top(logits, pixel, radius), rtol=0, atol=1e-9)


def test_a_place_is_the_highest_pixel_where_the_map_around_it_has_no_top():
    maps = torch.full((1, 3, 20, 20), -12.0)
    maps[:, :, 10, 8:13] = torch.tensor([0.99, 0.0, 1.0, 0.0, 0.9])  # bent upwards along x
    decoder = LandmarkDecoder(THREE)
    decoder.add_on_device(maps)
    assert decoder.finish_on_device(())[0, :, :2].tolist() == [[10.5 / 20, 10.5 / 20]] * 3


def test_a_place_is_at_most_a_pixel_from_the_highest_one():
    decoder = LandmarkDecoder(THREE)
    decoder.add_on_device(gaussian_maps(torch.tensor([[[-3.0, 10.0], [23.0, 11.0], [9.0, -3.0]]]), (20, 24)))
    places = decoder.finish_on_device(())[0, :, :2] * torch.tensor([20, 24]) - 0.5
    expected = torch.tensor([[-1.0, 10.0], [20.0, 11.0], [9.0, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(places, expected, atol=0.01, rtol=0)


@pytest.mark.parametrize("length", [1, 7, 20])
def test_a_place_is_the_first_of_the_highest_pixels(length):
    maps = torch.full((1, 3, 20, 20), -60.0, dtype=torch.float64)
    maps[:, :, 5, 6] = maps[:, :, 15, 3] = 0
    decoder = LandmarkDecoder(THREE)
    for strip in maps.split(length, dim=2):
        decoder.add_on_device(strip)
    assert decoder.finish_on_device(())[0, :, :2].tolist() == [[5.5 / 20, 6.5 / 20]] * 3


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_maps_of_a_broken_network_are_read_without_an_error(value):
    maps = torch.zeros(1, 3, 20, 20)
    maps[:, 1] = value
    maps[0, 2, 5, 5] = value
    decoder = LandmarkDecoder(THREE)
    decoder.add_on_device(maps)
    assert decoder.finish_on_device(()).shape == (1, 3, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maps_are_read_in_single_precision(dtype):
    maps = gaussian_maps(random_points((40, 51), seed=3, count=1), (40, 51)).to(dtype)
    exact = LandmarkDecoder(THREE)
    exact.add_on_device(maps.double())
    decoder = LandmarkDecoder(THREE)
    decoder.add_on_device(maps)
    places = exact.finish_on_device(())[0]
    assert places.dtype == torch.float64
    torch.testing.assert_close(decoder.finish_on_device(())[0].double(), places, atol=1e-4, rtol=0)


def test_a_map_without_weight_is_a_point_that_is_not_there():
    decoder = LandmarkDecoder(THREE)
    decoder.add_on_device(torch.full((1, 3, 20, 20), -12.0))
    assert (decoder.finish_on_device(())[0, :, -2] < 0.01).all()


def test_a_point_that_no_training_image_lacks_is_always_there():
    decoder = LandmarkDecoder(replace(THREE, always_there=(1,)))
    decoder.add_on_device(torch.full((1, 3, 20, 20), -12.0))
    left, right, tail = decoder.finish_on_device(())[0, :, -2].tolist()
    assert right == 1.0
    assert max(left, tail) < 0.01


def prediction_of_two_peaks(length: int) -> torch.Tensor:
    """(3, 4): what is read, in strips, of three maps with weights 3 at (5, 6) and 1 at (15, 12)."""
    maps = torch.full((1, 3, 20, 20), -60.0, dtype=torch.float64)
    maps[:, :, 5, 6] = math.log(3)
    maps[:, :, 15, 12] = 0
    decoder = LandmarkDecoder(THREE)
    for strip in maps.split(length, dim=2):
        decoder.add_on_device(strip)
    return decoder.finish_on_device(())[0]


@pytest.mark.parametrize("length", [1, 7, 20])
def test_confidence_is_the_share_of_the_weight_around_the_place(length):
    left, _, _ = prediction_of_two_peaks(length)
    assert left[3].item() == pytest.approx(3 / 4)


def test_points_of_the_next_image_are_read_from_its_maps_alone():
    decoder = LandmarkDecoder(THREE)
    maps = torch.randn(2, 3, 12, 15, generator=torch.Generator().manual_seed(0))
    predictions = []
    for image in (maps[:1], maps[1:], maps[:1]):
        decoder.add_on_device(image)
        predictions.append(decoder.finish_on_device(()))
    assert torch.equal(predictions[0], predictions[2])
    assert not torch.equal(predictions[0], predictions[1])


@pytest.mark.parametrize("length", [1, 7, 20])
def test_presence_is_the_share_of_the_weight_that_is_not_nowhere(length):
    points = prediction_of_two_peaks(length)
    expected = torch.tensor([5.5 / 20, 6.5 / 20, 4 / (4 + math.exp(0.5))], dtype=torch.float64)
    torch.testing.assert_close(points[:, :3], expected.expand(3, 3))
    assert points[1:].equal(points[:1].expand(2, 4))


def test_maps_of_a_mirrored_view_are_swapped_back():
    logits = torch.randn(1, 3, 4, 4)
    assert swap_sides(THREE, logits, dim=1).equal(logits[:, [1, 0, 2]])
    assert not LandmarkDecoder(replace(THREE, mirrors=False)).task.mirrors


def test_maps_of_several_views_are_multiplied():
    logits = torch.randn(1, 3, 4, 4)
    assert average(LandmarkDecoder(THREE), [logits, 3 * logits], dim=1).allclose(2 * logits)
