"""Landmarks: points in crops and strips, the loss over strips and processes, places from maps, scores.

Modules: tasks/landmarks.py, tasks/points.py, tasks/point_scores.py, inference/decoding/landmarks.py.
"""

import math
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.decoding.landmarks import LandmarkDecoder, PredictedPoints
from runtime.errors import ModelError
from tasks import task_of_model
from tasks.landmarks import Landmarks
from tasks.point_scores import auroc
from tasks.points import ABSENT, OUTSIDE, PRESENT, UNKNOWN, PointTarget, unknown_points
from tasks.step_loss import StepLoss
from tasks.target import Target
from unet import UNetConfig

TASK = Landmarks(names=("left", "right", "tail"), sigma=2.0, nowhere=0.5, partners=(1, 0, 2))
META = torch.device("meta")
MARKS = Landmarks(names=("a", "b"), partners=(0, 1))


def target(points: Tensor, states: list[list[int]], size: tuple[int, ...]) -> PointTarget:
    """A batch of points (B, K, n)."""
    count, _, axes = points.shape
    return PointTarget(
        points=points.double(),
        states=torch.tensor(states),
        size=torch.tensor([size] * count),
        unit=torch.ones(count, axes, dtype=torch.float64),
    )


def marked(points: list[list[float]], states: list[int], size: tuple[int, int]) -> PointTarget:
    """The points (K, 2) of one image, as they are read."""
    target = unknown_points(len(points), size)
    return replace(target, points=np.array(points), states=np.array(states))


def batch_of(target: PointTarget) -> PointTarget:
    """A batch of one image."""
    return PointTarget.stack([target.map(torch.from_numpy)])


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


def random_points(size: tuple[int, ...], seed: int = 0, count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(count, 3, len(size), generator=generator, dtype=torch.float64)
    return shares * torch.tensor(size, dtype=torch.float64) - 0.5


@pytest.mark.parametrize("size", [(23, 30), (9, 14, 17)])
def test_the_loss_of_strips_adds_up_to_that_of_the_whole(size):
    points = random_points(size)
    targets = target(points, [[PRESENT, ABSENT, PRESENT], [UNKNOWN, PRESENT, OUTSIDE]], size)
    logits = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = TASK.finish(TASK.partial(logits, targets))
    sums: tuple[Tensor, ...] = ()
    top = 0
    for strip in logits.split(4, dim=2):
        part = TASK.partial(strip, targets.strip(top, top + strip.shape[2]))
        sums = tuple(map(torch.add, sums, part)) if sums else part
        top += strip.shape[2]
    torch.testing.assert_close(TASK.finish(sums), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sigma", [2.0, 1.25])
def test_the_loss_is_the_cross_entropy_against_a_gaussian_and_a_quarter_of_that_of_presence(sigma):
    task = replace(TASK, sigma=sigma)
    size = (12, 15)
    points = random_points(size, count=1)
    targets = target(points, [[PRESENT, ABSENT, UNKNOWN]], size)
    logits = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows, columns = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="ij")
    distances = (rows - points[0, 0, 0]) ** 2 + (columns - points[0, 0, 1]) ** 2
    gaussian = (-0.5 * distances / sigma**2).exp()
    gaussian = gaussian / gaussian.sum()
    place = -(gaussian * logits[0, 0].flatten().log_softmax(0).view(size)).sum()
    # beside the map stands a weight for "nowhere"
    presence = -(logits[0, 0].flatten().logsumexp(0) - task.nowhere).sigmoid().log()
    absence = -(task.nowhere - logits[0, 1].flatten().logsumexp(0)).sigmoid().log()
    sums = task.finish(task.partial(logits, targets))
    torch.testing.assert_close(sums, torch.stack([place, 0.25 * (presence + absence)]))
    assert task.counts(targets).tolist() == [1, 2]


def test_the_loss_of_a_map_of_large_logits_is_finite():
    targets = target(torch.tensor([[[1.0, 1], [2, 2]]]), [[PRESENT, PRESENT]], (4, 4))
    sums = MARKS.finish(MARKS.partial(torch.full((1, 2, 4, 4), 300.0), targets))
    assert sums[0].item() == pytest.approx(2 * math.log(16), rel=1e-4)  # all pixels are as likely


def test_the_loss_of_a_map_without_weight_and_of_a_point_far_outside_is_finite():
    targets = target(torch.tensor([[[1.0, 1], [-900, 2]]]), [[PRESENT, OUTSIDE]], (4, 4))
    logits = torch.full((1, 2, 4, 4), -900.0)
    assert MARKS.finish(MARKS.partial(logits, targets)).isfinite().all()


def test_the_loss_of_a_step_does_not_depend_on_how_it_is_split():
    size = (16, 16)
    points = random_points(size, count=4)
    states = [[PRESENT, ABSENT, UNKNOWN], [PRESENT] * 3, [UNKNOWN] * 3, [OUTSIDE, PRESENT, ABSENT]]
    targets = target(points, states, size)
    levels = [torch.randn(4, 3, 16, 16).double(), torch.randn(4, 3, 8, 8).double()]
    loss = StepLoss(TASK, strides=[(2, 2)])
    counts = loss.counts(targets)
    whole = loss(levels, targets, counts)
    parts = []
    for images in (slice(0, 1), slice(1, 4)):
        parts.append(loss([level[images] for level in levels], targets.at(images), counts))
    torch.testing.assert_close(sum(parts), whole)


def test_a_point_outside_of_the_crop_has_no_place_to_learn():
    target = batch_of(marked([[-9, 0], [2, 2]], [OUTSIDE, PRESENT], (8, 8)))
    logits = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert MARKS.counts(target)[0] == 1
    alone = batch_of(marked([[-9, 0], [2, 2]], [UNKNOWN, PRESENT], (8, 8)))
    places = [MARKS.finish(MARKS.partial(logits, points))[0] for points in (target, alone)]
    assert places[0] == places[1]


def test_a_coarser_level_has_the_center_of_the_pixels_that_become_one():
    targets = target(torch.tensor([[[0.5, 0.5], [2.5, 4.5], [0.0, 0.0]]]), [[PRESENT] * 3], (8, 9))
    coarse = TASK.at_level(targets, (2, 2))
    assert coarse.points[0].tolist() == [[0, 0], [1, 2], [-0.25, -0.25]]
    assert coarse.shape == (1, 4, 4)
    flat = TASK.at_level(targets, (2, 3))
    torch.testing.assert_close(flat.points[0, 1], torch.tensor([1, 3.5 / 3], dtype=torch.float64))
    assert flat.shape == (1, 4, 3)
    assert flat.unit.tolist() == [[2, 3]]


@pytest.mark.parametrize("size", [(40, 51), (13, 20, 22)])
@pytest.mark.parametrize("length", [1, 3, 50])
def test_places_of_drawn_gaussians_are_read_to_a_twentieth_of_a_pixel_in_strips_too(size, length):
    points = random_points(size, seed=3, count=1)
    decoder = LandmarkDecoder(TASK)
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
    decoder = LandmarkDecoder(replace(TASK, sigma=sigma))
    decoder.add_on_device(maps)
    places = decoder.finish_on_device(())[0, :, : len(size)] * torch.tensor(size) - 0.5
    for logits, place in zip(maps[0].numpy(), places.numpy(), strict=True):
        pixel = np.unravel_index(logits.argmax(), size)
        np.testing.assert_allclose(place, fitted_top(logits, pixel, radius), rtol=0, atol=1e-9)


def test_a_place_is_the_highest_pixel_where_the_map_around_it_has_no_top():
    maps = torch.full((1, 3, 20, 20), -12.0)
    maps[:, :, 10, 8:13] = torch.tensor([0.99, 0.0, 1.0, 0.0, 0.9])  # bent upwards along x
    decoder = LandmarkDecoder(TASK)
    decoder.add_on_device(maps)
    assert decoder.finish_on_device(())[0, :, :2].tolist() == [[10.5 / 20, 10.5 / 20]] * 3


def test_a_place_is_at_most_a_pixel_from_the_highest_one():
    decoder = LandmarkDecoder(TASK)
    decoder.add_on_device(gaussian_maps(torch.tensor([[[-3.0, 10.0], [23.0, 11.0], [9.0, -3.0]]]), (20, 24)))
    places = decoder.finish_on_device(())[0, :, :2] * torch.tensor([20, 24]) - 0.5
    expected = torch.tensor([[-1.0, 10.0], [20.0, 11.0], [9.0, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(places, expected, atol=0.01, rtol=0)


@pytest.mark.parametrize("length", [1, 7, 20])
def test_of_pixels_that_are_equally_high_the_first_one_is_the_place(length):
    maps = torch.full((1, 3, 20, 20), -60.0, dtype=torch.float64)
    maps[:, :, 5, 6] = maps[:, :, 15, 3] = 0
    decoder = LandmarkDecoder(TASK)
    for strip in maps.split(length, dim=2):
        decoder.add_on_device(strip)
    assert decoder.finish_on_device(())[0, :, :2].tolist() == [[5.5 / 20, 6.5 / 20]] * 3


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_maps_of_a_broken_network_are_read_without_an_error(value):
    maps = torch.zeros(1, 3, 20, 20)
    maps[:, 1] = value
    maps[0, 2, 5, 5] = value
    decoder = LandmarkDecoder(TASK)
    decoder.add_on_device(maps)
    assert decoder.finish_on_device(()).shape == (1, 3, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maps_are_read_in_single_precision_and_double_ones_in_double(dtype):
    maps = gaussian_maps(random_points((40, 51), seed=3, count=1), (40, 51)).to(dtype)
    exact = LandmarkDecoder(TASK)
    exact.add_on_device(maps.double())
    decoder = LandmarkDecoder(TASK)
    decoder.add_on_device(maps)
    places = exact.finish_on_device(())[0]
    assert places.dtype == torch.float64
    torch.testing.assert_close(decoder.finish_on_device(())[0].double(), places, atol=1e-4, rtol=0)


def test_a_map_without_weight_is_a_point_that_is_not_there():
    decoder = LandmarkDecoder(TASK)
    decoder.add_on_device(torch.full((1, 3, 20, 20), -12.0))
    assert (decoder.finish_on_device(())[0, :, -2] < 0.01).all()


def test_a_point_that_no_training_image_lacks_is_there_however_weak_its_map_is():
    decoder = LandmarkDecoder(replace(TASK, always_there=(1,)))
    decoder.add_on_device(torch.full((1, 3, 20, 20), -12.0))
    left, right, tail = decoder.finish_on_device(())[0, :, -2].tolist()
    assert right == 1.0
    assert max(left, tail) < 0.01


@pytest.mark.parametrize("length", [1, 7, 20])
def test_confidence_is_the_share_of_the_maps_weight_around_the_place_and_presence_that_of_the_map(length):
    maps = torch.full((1, 3, 20, 20), -60.0, dtype=torch.float64)
    maps[:, :, 5, 6] = math.log(3)
    maps[:, :, 15, 12] = 0
    decoder = LandmarkDecoder(TASK)
    for strip in maps.split(length, dim=2):
        decoder.add_on_device(strip)
    expected = torch.tensor([5.5 / 20, 6.5 / 20, 4 / (4 + math.exp(0.5)), 3 / 4], dtype=torch.float64)
    torch.testing.assert_close(decoder.finish_on_device(())[0], expected.expand(3, 4))


def test_nothing_is_known_of_the_points_of_a_filler_and_of_the_targets_that_memory_is_measured_with():
    assert unknown_points(2, (3, 4)).states.tolist() == [UNKNOWN, UNKNOWN]
    zeros = TASK.zero_targets((2, 8, 9), torch.device("cpu"))
    assert zeros.shape == (2, 8, 9)
    assert zeros.points.shape == (2, 3, 2)
    assert zeros.states.tolist() == [[UNKNOWN] * 3] * 2


def test_columns_of_a_prediction_are_place_presence_and_confidence():
    points = PredictedPoints.of(np.array([[0.25, 0.5, 0.5, 0.9], [0.0, 1.0, 0.4, 1.0]]))
    assert points.is_found.tolist() == [True, False]
    assert points.confidence.tolist() == [0.9, 1]
    assert points.positions((8, 10)).tolist() == [[1.5, 4.5], [-0.5, 9.5]]


def test_views_are_swapped_back_and_their_maps_multiplied():
    decoder = LandmarkDecoder(TASK)
    logits = torch.randn(1, 3, 4, 4)
    assert decoder.unmirrored(logits, dim=1).equal(logits[:, [1, 0, 2]])
    assert decoder.average([logits, 3 * logits], dim=1).allclose(2 * logits)
    assert not LandmarkDecoder(replace(TASK, mirrors=False)).task.mirrors


def test_a_crop_knows_nothing_of_the_presence_of_points_outside():
    points = np.array([[5.0, 5.0], [1.0, 9.0], [3.4, 2.6]])
    whole = replace(unknown_points(3, (10, 12)), points=points, states=np.array([PRESENT, PRESENT, ABSENT]))
    crop = whole.cropped([slice(2, 8), slice(1, 6)])
    assert crop.points.tolist() == (points - [2, 1]).tolist()
    assert crop.states.tolist() == [PRESENT, OUTSIDE, ABSENT]
    assert crop.padded((8, 8)).shape == (8, 8)
    assert crop.shape == (6, 5)
    assert [place.tolist() for place in crop.locations()] == [[[3, 4]]]
    assert whole.states.tolist() == [PRESENT, PRESENT, ABSENT]
    assert whole.shape == (10, 12)


def test_a_crop_reaches_half_a_pixel_beyond_its_first_and_last_centers():
    points = [[1.5, 4], [1.49, 4], [5.49, 4], [5.5, 4], [0, 0], [0, 0]]
    states = [PRESENT] * 4 + [ABSENT, UNKNOWN]
    crop = marked(points, states, (10, 10)).cropped([slice(2, 6), slice(0, 10)])
    assert crop.states.tolist() == [PRESENT, OUTSIDE, PRESENT, OUTSIDE, ABSENT, UNKNOWN]
    assert crop.points[0].tolist() == [-0.5, 4]


def test_crops_are_centered_on_the_pixels_of_present_points():
    target = marked([[3.6, 2.4], [1, 1], [2, 2]], [PRESENT, ABSENT, OUTSIDE], (9, 9))
    assert [place.tolist() for place in target.locations()] == [[[4, 2]]]


def test_a_band_of_points_is_counted_from_its_own_first_row():
    batch = batch_of(marked([[5, 4]], [PRESENT], (10, 12)))
    strip = batch.strip(3, 8)
    assert strip.points.tolist() == [[[2, 4]]]
    assert strip.shape == (1, 5, 12)
    assert batch.points.tolist() == [[[5, 4]]]
    assert batch.shape == (1, 10, 12)


def test_a_moved_point_is_outside_only_where_it_was_there():
    target = batch_of(marked([[0, 0], [2, 0], [2, 0], [2, 3]], [PRESENT, ABSENT, UNKNOWN, PRESENT], (4, 6)))
    moved = target.moved(
        move_labels=lambda labels, unknown: labels,
        move_points=lambda points: points + torch.tensor([1.5, 0.0]),
    )
    assert moved.states.tolist() == [[PRESENT, ABSENT, UNKNOWN, OUTSIDE]]  # 3.5 is the border of the last pixel


@pytest.mark.parametrize(("device", "dtype"), [("mps", torch.float32), ("cuda", torch.float64), ("cpu", torch.float64)])
def test_points_are_in_double_precision_where_the_device_has_it(monkeypatch, device, dtype):
    monkeypatch.setattr(Target, "to", lambda target, device, non_blocking: target)
    moved = target(torch.zeros(1, 1, 2), [[PRESENT]], (8, 9)).to(torch.device(device))
    assert moved.points.dtype == moved.unit.dtype == dtype
    assert moved.size.dtype == torch.int64


def test_the_size_of_images_with_points_stays_where_shapes_are_needed():
    moved = batch_of(marked([[5, 4]], [PRESENT], (10, 12))).to(META)
    assert moved.size.device.type == "cpu"
    assert moved.points.device.type == "meta"
    assert moved.shape == (1, 10, 12)


def test_an_image_reaches_half_a_pixel_beyond_the_centers_of_its_border():
    places = [[-0.5, 0], [-0.6, 0], [5.4, 0], [5.5, 0], [0, -0.5], [0, -0.6], [0, 4.4], [0, 4.5]]
    expected = [PRESENT, OUTSIDE] * 4
    whole = replace(unknown_points(8, (20, 20)), points=np.add(places, (3, 2)), states=np.full(8, PRESENT))
    assert whole.cropped([slice(3, 9), slice(2, 7)]).states.tolist() == expected
    batch = PointTarget.stack([replace(unknown_points(8, (6, 5)), states=np.full(8, PRESENT)).map(torch.from_numpy)])
    moved = batch.moved(lambda labels, unknown: labels, lambda points: points + torch.tensor(places).double())
    assert moved.states[0].tolist() == expected


def test_what_lies_exactly_at_a_limit_counts_as_within_it():
    size = (50, 100)
    truth = target(torch.tensor([[[10.0, 10], [20, 20], [30, 30]]]), [[PRESENT, PRESENT, ABSENT]], size)
    scores = TASK.new_scores(1)
    scores.add(prediction([[10, 12], [20, 30], [0, 0]], [0.5, 0.4, 0.5], size), truth, 0)
    values = scores.values()
    assert [values[f"sdr/{radius}_percent"] for radius in (1, 2, 3, 5)] == [0, 0.5, 0.5, 0.5]
    assert values["outliers"] == 0  # 10% of the longer side
    assert (values["presence_precision"], values["presence_recall"]) == (0.5, 0.5)
    assert scores.brief() == {"closeness": scores.comparison, "mean_radial_error": 6}
    in_mm = replace(TASK, unit="mm").new_scores(1)
    in_mm.add(prediction([[10, 20], [20, 31], [0, 0]], [0.5, 0.5, 0.5], size), truth, 0)
    assert in_mm.values()["outliers"] == 1  # beyond 10 mm
    nothing = TASK.new_scores(1)
    assert nothing.brief() == {"closeness": None, "mean_radial_error": None}
    assert nothing.comparison == 0


def test_scores_are_those_of_the_errors_one_by_one():
    scores = TASK.new_scores(2)
    size = (60, 80)  # the diagonal is 100
    first = target(torch.tensor([[[10.0, 10], [20, 20], [5, 5]]]), [[PRESENT, PRESENT, ABSENT]], size)
    second = target(torch.tensor([[[10.0, 10], [20, 20], [5, 5]]]), [[PRESENT, UNKNOWN, PRESENT]], size)
    scores.add(prediction([[10, 13], [24, 23], [50, 70]], [0.9, 0.8, 0.3], size), first, 0)
    scores.add(prediction([[10, 10], [0, 0], [5, 15]], [0.9, 0.1, 0.2], size), second, 1)
    values = scores.values()
    errors = [3, 5, 0, 10]
    assert values["mean_radial_error"] == pytest.approx(np.mean(errors))
    assert values["radial_error_std"] == pytest.approx(np.std(errors))
    assert values["median_radial_error"] == pytest.approx(4)
    # 1, 2, 3 and 5% of 80 pixels
    assert [values[f"sdr/{radius}_percent"] for radius in (1, 2, 3, 5)] == [0.25, 0.25, 0.25, 0.5]
    assert values["outliers"] == 1
    assert (values["presence_precision"], values["presence_recall"]) == (1.0, 0.75)
    assert values["presence_auroc"] == pytest.approx(3 / 4)
    # the absent one is not found, as it should be; the last one is not either, and so as far as the diagonal
    assert scores.comparison == pytest.approx(np.mean([0.97, 0.95, 1, 1, 0]))
    assert scores.image_comparison == pytest.approx([np.mean([0.97, 0.95, 1]), 0.5])
    nothing = target(torch.zeros(1, 3, 2), [[UNKNOWN] * 3], size)
    before = scores.by_image.tolist()
    scores.add(prediction([[1, 1]] * 3, [0.9] * 3, size), nothing, 1)  # a filler
    assert scores.by_image.tolist() == before
    again = TASK.scores_from_json(scores.to_json())
    assert again.report() == scores.report()
    assert again.table() == scores.table()


def prediction(places: list[list[float]], presence: list[float], size: tuple[int, int]) -> Tensor:
    """(1, K, 4) as a decoder gives it."""
    shares = (torch.tensor(places, dtype=torch.float64) + 0.5) / torch.tensor(size)
    return torch.cat([shares, torch.tensor([presence]).T.double(), torch.ones(len(places), 1)], dim=1)[None]


def test_merged_scores_are_those_of_all_images():
    size = (60, 80)
    whole, parts = TASK.new_scores(3), TASK.new_scores(0)
    for index in range(3):
        truth = target(random_points(size, seed=index, count=1), [[PRESENT, ABSENT, UNKNOWN]], size)
        answer = prediction(random_points(size, seed=9 + index, count=1)[0].tolist(), [0.6, 0.4, 0.1], size)
        part = TASK.new_scores(1)
        whole.add(answer, truth, index)
        part.add(answer, truth, 0)
        parts.merge(part)
    assert parts.report() == whole.report()
    assert parts.sums.tolist() == whole.sums.tolist() == [6]


@pytest.mark.parametrize("seed", range(3))
def test_auroc_counts_pairs_and_ties_by_half(seed):
    rng = np.random.default_rng(seed)
    positive, negative = rng.integers(0, 6, 17) / 5, rng.integers(0, 5, 11) / 5
    wins = (positive[:, None] > negative).mean() + 0.5 * (positive[:, None] == negative).mean()
    assert auroc(torch.from_numpy(positive), torch.from_numpy(negative)) == pytest.approx(wins)
    assert auroc(torch.from_numpy(positive), torch.zeros(0)) is None


def test_a_model_knows_its_points():
    task = replace(TASK, always_there=(0, 2))
    config = UNetConfig(num_classes=3, task=task.to_config())
    assert task_of_model(UNetConfig.from_json(config.to_json())) == task
    earlier = {key: value for key, value in TASK.to_config().items() if key != "always_there"}
    assert task_of_model(replace(config, task=earlier)) == TASK
    numbered = replace(config, task={**TASK.to_config(), "names": [1, 2, 3]})
    assert task_of_model(numbered).names == ("1", "2", "3")
    damages = [{"names": ["a"]}, {"partners": [0, 0, 1]}, {"sigma": 0}, {"sigma": "2"}, {"layout": "xml"}, {"more": 1}]
    damages += [{"always_there": [3]}, {"absent": "x"}]
    for damage in damages:
        with pytest.raises(ModelError, match="task"):
            task_of_model(replace(config, task={**TASK.to_config(), **damage}))


def test_a_model_of_points_has_as_many_names_as_outputs_and_a_unit_for_its_scores():
    config = UNetConfig(num_classes=3, task=MARKS.to_config())
    with pytest.raises(ModelError, match="does not fit its 3 outputs"):
        task_of_model(config)
    in_mm = replace(MARKS, unit="mm")
    scores = in_mm.new_scores(1)
    assert scores.unit == in_mm.scores_from_json(scores.to_json()).unit == "mm"


def test_models_that_predict_together_agree_on_what_weighs_nothing_and_is_never_absent():
    tasks = [
        replace(TASK, nowhere=1.0, always_there=(0, 1, 2)),
        replace(TASK, nowhere=2.0, always_there=(2, 1), mirrors=False),
        replace(TASK, nowhere=6.0, always_there=(0, 1)),
    ]
    joined = tasks[0].of_ensemble(tasks[1:])
    assert joined == replace(TASK, nowhere=3.0, always_there=(1,), mirrors=False)
    assert tasks[0].of_ensemble(tasks[1:2]).always_there == (1, 2)


def test_the_gradient_moves_a_map_to_its_point():
    size = (16, 20)
    points = random_points(size, count=1)
    targets = target(points, [[PRESENT, PRESENT, ABSENT]], size)
    logits = torch.zeros(1, 3, *size, dtype=torch.float64, requires_grad=True)
    loss = StepLoss(TASK)
    optimizer = torch.optim.Adam([logits], lr=0.3)
    for _ in range(200):
        optimizer.zero_grad()
        loss(logits, targets, loss.counts(targets)).backward()
        optimizer.step()
    decoder = LandmarkDecoder(TASK)
    decoder.add_on_device(logits.detach())
    answer = decoder.finish_on_device(())[0]
    places = answer[:2, :2] * torch.tensor(size) - 0.5
    assert (places - points[0, :2]).abs().max() < 0.05
    assert answer[:2, 2].min() > 0.9
    assert answer[2, 2] < 0.1
    assert math.isfinite(loss(logits, targets, loss.counts(targets)).item())
