"""Scores of landmarks: errors and radii, presence, and the digits in which they are shown.

Module: tasks/landmarks/scores.py.
"""

import numpy as np
import pytest
import torch
from support.landmarks import THREE, TWO, batch_of_points, random_points
from torch import Tensor

from data_utils.point_states import ABSENT, OUTSIDE, PRESENT, UNKNOWN
from inference.report import print_scores
from tasks.landmarks.scores import LandmarkScores
from tasks.landmarks.target import PointTarget


def point_prediction(places: list[list[float]], presence: list[float], size: tuple[int, int]) -> Tensor:
    """(1, K, 4) as a decoder gives it."""
    shares = (torch.tensor(places, dtype=torch.float64) + 0.5) / torch.tensor(size)
    return torch.cat([shares, torch.tensor([presence]).T.double(), torch.ones(len(places), 1)], dim=1)[None]


def score_of(unit: str, rows: list[list[float]]) -> LandmarkScores:
    """Scores of one landmark from its states, errors, sides, diagonals and presences in images."""
    by_image = torch.tensor(rows, dtype=torch.float64)[:, None]
    return LandmarkScores(["a"], unit, torch.tensor([len(rows)]), by_image)


def test_radii_in_percent_of_the_longer_side_hold_their_border():
    errors = (2.0, 4.0, 6.0, 10.0, 20.0, 20.5)  # 1, 2, 3, 5, 10 and 10.25% of 200 pixels
    values = score_of("px", [[PRESENT, error, 200, 250, 1] for error in errors]).values
    assert [values[f"sdr/{percent}_percent"] for percent in (1, 2, 3, 5)] == [1 / 6, 2 / 6, 3 / 6, 4 / 6]
    assert values["outliers"] == 1


def test_precision_is_unknown_where_no_point_is_found():
    values = score_of("px", [[PRESENT, 1, 100, 100, 0.1]]).values
    assert values["presence_precision"] is None
    assert values["presence_auroc"] is None
    assert values["absent"] == 0


POINTS_IN_TWO_IMAGES = [[PRESENT, 10, 100, 100, 0.1], [PRESENT, 30, 100, 100, 0.9]]  # the first one is not found


@pytest.mark.parametrize("more", [[], [[UNKNOWN, 0, 0, 0, 0]]], ids=["all are present", "one is unknown"])
def test_places_alone_are_compared_where_no_point_is_absent(more):
    scores = score_of("px", [*POINTS_IN_TWO_IMAGES, *more])
    assert scores.comparison == pytest.approx(0.8)
    assert scores.image_comparison[:2] == pytest.approx([0.9, 0.7])
    assert scores.values["presence_recall"] == 0.5


def test_a_point_that_is_not_found_counts_in_its_image_if_another_image_lacks_points():
    scores = score_of("px", [[ABSENT, 0, 100, 100, 0.1], *POINTS_IN_TWO_IMAGES])
    for name, row in zip("abc", scores.by_image, strict=True):
        image = LandmarkScores(["a"], "px", torch.tensor([1]), row[None])
        scores.entries.append({"image": name, **image.brief()})
    closeness = {entry["image"]: entry["closeness"] for entry in print_scores(scores)["by_image"]}
    assert closeness == {"a": 1, "b": 0, "c": pytest.approx(0.7)}


def test_few_absent_points_among_many_present_ones_are_ranked_exactly():
    present = [[PRESENT, 1, 100, 100, number / 99_999] for number in range(99_999)]
    scores = score_of("px", [*present, [ABSENT, 0, 100, 100, 33_332.5 / 99_999]])
    assert scores.values["presence_auroc"] == pytest.approx(66_666 / 99_999, rel=1e-12)


def test_an_image_of_which_nothing_is_known_compares_as_the_worst():
    scores = score_of("px", [[PRESENT, 10, 100, 100, 0.9], [0, 0, 0, 0, 0]])
    assert scores.image_comparison == pytest.approx([0.9, 0])
    assert scores.comparison == pytest.approx(0.9)


def test_a_point_beyond_the_diagonal_is_as_bad_as_one_that_is_not_found():
    assert score_of("px", [[PRESENT, 300, 100, 120, 1], [PRESENT, 0, 100, 120, 1]]).comparison == 0.5


def random_rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """States (7, 3) of three landmarks in seven images, and their rows (7, 3, 5) of scores."""
    rng = np.random.default_rng(seed)
    states = rng.choice([PRESENT, ABSENT, OUTSIDE], (7, 3))
    states[2] = ABSENT  # an image without a point
    rows = np.zeros((7, 3, 5))
    is_inside = states != OUTSIDE
    rows[is_inside, 0] = states[is_inside]
    rows[..., 1] = rng.integers(0, 30, (7, 3)) * (states == PRESENT)
    rows[is_inside, 2:4] = [100, 125]
    rows[is_inside, 4] = rng.choice([0.2, 0.4, 0.5, 0.8], is_inside.sum())
    return states, rows


def scores_of_rows(rows: np.ndarray) -> LandmarkScores:
    count = int((rows[..., 2] > 0).sum())
    return LandmarkScores(("a", "b", "c"), "px", torch.tensor([count]), torch.from_numpy(rows))


@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_that_are_counted_point_by_point(seed):
    states, rows = random_rows(seed)
    present, absent = rows[states == PRESENT], rows[states == ABSENT]
    errors = present[:, 1]
    predicted_count, invented = (present[:, 4] >= 0.5).sum(), (absent[:, 4] >= 0.5).sum()
    pairs = present[:, 4, None] - absent[:, 4]
    expected = {
        "mean_radial_error": errors.mean(),
        "radial_error_std": errors.std(),
        "median_radial_error": np.median(errors),
        "outliers": (errors > 10).sum(),
        "presence_precision": predicted_count / (predicted_count + invented),
        "presence_recall": predicted_count / len(present),
        "presence_auroc": ((pairs > 0) + (pairs == 0) / 2).mean(),
        "present": len(present),
        "absent": len(absent),
    }
    expected |= {f"sdr/{percent}_percent": (errors <= percent).mean() for percent in (1, 2, 3, 5)}
    scores = scores_of_rows(rows)
    values = scores.values
    assert values.pop("closeness") == scores.comparison
    assert values == pytest.approx(expected)
    assert f"median radial error (px) {np.median(errors):.2f}, AUROC of presence" in scores.summary()


@pytest.mark.parametrize("seed", range(4))
def test_closeness_is_one_where_presence_is_right_less_the_error(seed):
    states, rows = random_rows(seed)
    is_right = (rows[..., 4] >= 0.5) == (states == PRESENT)
    closeness = np.where(is_right, np.clip(1 - rows[..., 1] / 125, 0, 1), 0)
    is_inside = states != OUTSIDE
    scores = scores_of_rows(rows)
    assert scores.comparison == pytest.approx(closeness[is_inside].mean())
    by_image = [closeness[row][is_inside[row]] for row in range(7)]
    assert scores.image_comparison == pytest.approx([values.mean() if len(values) else 0 for values in by_image])


def test_landmarks_that_no_image_holds_have_no_errors():
    scores = score_of("px", [[ABSENT, 0, 100, 125, 0.25]])
    assert scores.comparison == 1
    assert scores.image_comparison == [1]
    assert scores.brief() == {"closeness": 1, "mean_radial_error": None}
    assert scores.summary() == "mean radial error (px) n/a, median radial error (px) n/a"
    assert scores.score_tables()[0].cells()[1] == ["a", *["n/a"] * 7, "0", *["n/a"] * 3, "0", "1"]


def test_the_sides_of_an_image_are_those_of_its_file():
    """Scores of an image with a point that is there, and one of which that was not asked; the file has 60 x 120."""
    target = PointTarget(
        points=torch.tensor([[[4.0, 9.0], [0.0, 0.0]]], dtype=torch.float64),
        states=torch.tensor([[PRESENT, OUTSIDE]]),
        size=torch.tensor([[30, 20]]),
        unit=torch.tensor([[2.0, 6.0]], dtype=torch.float64),
    )
    scores_of_file = TWO.new_scores(1)
    center = (torch.tensor([4.0, 9.0], dtype=torch.float64) + 0.5 + torch.tensor([3.0, 4 / 3])) / torch.tensor([30, 20])
    prediction = torch.stack([torch.cat([center, torch.tensor([0.75, 0.25])]), torch.ones(4)])[None]
    scores_of_file.add(prediction, target, 0)
    expected = [PRESENT, 10.0, 120.0, (60**2 + 120**2) ** 0.5, 0.75]
    assert scores_of_file.by_image[0, 0].tolist() == pytest.approx(expected)


def test_the_sides_of_a_volume_are_those_of_its_file():
    target = PointTarget(
        points=torch.zeros(1, 2, 3, dtype=torch.float64),
        states=torch.tensor([[PRESENT, UNKNOWN]]),
        size=torch.tensor([[40, 30, 20]]),
        unit=torch.tensor([[3.0, 1.0, 2.0]], dtype=torch.float64),
    )
    scores = TWO.new_scores(1)
    scores.add(torch.ones(1, 2, 5), target, 0)
    assert scores.by_image[0, 0, 2:4].tolist() == [120, 130]  # of 120 x 30 x 40


def test_merged_scores_are_those_of_all_images():
    size = (60, 80)
    whole, parts = THREE.new_scores(3), THREE.new_scores(0)
    for index in range(3):
        truth = batch_of_points(random_points(size, seed=index, count=1), [[PRESENT, ABSENT, UNKNOWN]], size)
        answer = point_prediction(random_points(size, seed=9 + index, count=1)[0].tolist(), [0.6, 0.4, 0.1], size)
        part = THREE.new_scores(1)
        whole.add(answer, truth, index)
        part.add(answer, truth, 0)
        parts.merge(part)
    assert parts.report() == whole.report()
    assert parts.sums.tolist() == whole.sums.tolist() == [6]
