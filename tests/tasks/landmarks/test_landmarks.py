"""Landmarks: the loss over strips and processes, coarser levels, and what a model keeps of the task.

Module: tasks/landmarks/loss.py.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.landmarks import THREE, TWO, batch_of_image, batch_of_points, random_points
from torch import Tensor

from data_utils.point_states import ABSENT, OUTSIDE, PRESENT, UNKNOWN
from tasks import task_of_model
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.target import PointTarget
from unet import UNetConfig


def image_points(points: list[list[float]], states: list[int], size: tuple[int, int]) -> PointTarget:
    """The points (K, 2) of one image, as they are read."""
    target = Landmarks(tuple(map(str, points))).unknown_target(size)
    return replace(target, points=np.array(points), states=np.array(states))


def place_and_presence(logits: Tensor, points: Tensor, sigma: float, nowhere: float) -> tuple[Tensor, Tensor]:
    """Both terms of the loss, for a first point that is there and a second one that is not."""
    _, height, width = logits.shape
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    distances = (rows - points[0, 0]) ** 2 + (columns - points[0, 1]) ** 2
    gaussian = (-0.5 * distances / sigma**2).exp()
    gaussian = gaussian / gaussian.sum()
    place = -(gaussian * logits[0].flatten().log_softmax(0).view(height, width)).sum()
    # beside the map stands a weight for "nowhere"
    presence = -(logits[0].flatten().logsumexp(0) - nowhere).sigmoid().log()
    absence = -(nowhere - logits[1].flatten().logsumexp(0)).sigmoid().log()
    return place, presence + absence


@pytest.mark.parametrize(
    ("sigma", "size"), [(2.0, (12, 15)), (1.25, (12, 15)), (0.25, (12, 15)), (2.0, (1, 2**12))], ids=str
)
def test_the_loss_is_the_cross_entropy_against_a_gaussian(sigma, size):
    task = replace(THREE, sigma=sigma)
    points = random_points(size, count=1)
    targets = batch_of_points(points, [[PRESENT, ABSENT, UNKNOWN]], size)
    logits = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    place, presence = place_and_presence(logits[0], points[0], sigma, task.nowhere)
    sums = task.finish(task.partial(logits, targets), targets)
    torch.testing.assert_close(sums, torch.stack([place, 0.25 * presence]))
    assert task.counts(targets).tolist() == [1, 2]


def test_the_loss_of_extreme_logits_is_finite():
    targets = batch_of_points(torch.tensor([[[1.0, 1], [2, 2]]]), [[PRESENT, PRESENT]], (4, 4))
    sums = TWO.finish(TWO.partial(torch.full((1, 2, 4, 4), 300.0), targets), targets)
    assert sums[0].item() == pytest.approx(2 * math.log(16), rel=1e-4)  # all pixels are as likely
    targets = batch_of_points(torch.tensor([[[1.0, 1], [-900, 2]]]), [[PRESENT, OUTSIDE]], (4, 4))
    logits = torch.full((1, 2, 4, 4), -900.0)
    assert TWO.finish(TWO.partial(logits, targets), targets).isfinite().all()


def test_a_point_outside_of_the_crop_has_no_place_to_learn():
    target = batch_of_image(image_points([[-9, 0], [2, 2]], [OUTSIDE, PRESENT], (8, 8)))
    logits = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert TWO.counts(target).tolist() == [1, 2]
    alone = batch_of_image(image_points([[-9, 0], [2, 2]], [UNKNOWN, PRESENT], (8, 8)))
    places = [TWO.finish(TWO.partial(logits, points), points)[0] for points in (target, alone)]
    assert places[0] == places[1]


def test_the_presence_of_a_point_outside_of_the_crop_is_learned_as_absence():
    logits = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    terms = []
    for state in (OUTSIDE, ABSENT):
        target = batch_of_image(image_points([[-9, 0], [2, 2]], [state, PRESENT], (8, 8)))
        terms.append(TWO.finish(TWO.partial(logits, target), target))
    assert torch.equal(*terms)


@pytest.mark.parametrize(
    ("factors", "points", "shape"),
    [
        ((2, 2), [[0, 0], [1, 2], [-0.25, -0.25]], (1, 4, 4)),
        ((2, 3), [[0, -1 / 6], [1, 3.5 / 3], [-0.25, -1 / 3]], (1, 4, 3)),
    ],
)
def test_a_coarser_level_has_the_center_of_the_pixels_that_become_one(factors, points, shape):
    targets = batch_of_points(torch.tensor([[[0.5, 0.5], [2.5, 4.5], [0.0, 0.0]]]), [[PRESENT] * 3], (8, 9))
    coarse = THREE.at_level(targets, factors)
    torch.testing.assert_close(coarse.points[0], torch.tensor(points, dtype=torch.float64))
    assert coarse.shape == shape
    assert coarse.unit.tolist() == [list(factors)]


def test_points_of_an_earlier_model_may_all_be_absent():
    earlier = {key: value for key, value in THREE.to_config().items() if key != "always_there"}
    assert task_of_model(UNetConfig(num_classes=3, task=earlier)) == THREE


def test_models_that_predict_together_are_one_task():
    tasks = [
        replace(THREE, nowhere=1.0, always_there=(0, 1, 2)),
        replace(THREE, nowhere=2.0, always_there=(2, 1), mirrors=False),
        replace(THREE, nowhere=6.0, always_there=(0, 1)),
    ]
    joined = tasks[0].ensemble_task(tasks[1:])
    assert joined == replace(THREE, nowhere=3.0, always_there=(1,), mirrors=False)
    assert tasks[0].ensemble_task(tasks[1:2]).always_there == (1, 2)
