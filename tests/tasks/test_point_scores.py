"""Scores of landmarks: errors and radii, presence, and the digits in which they are shown."""

import numpy as np
import pytest
import torch

from tasks.landmarks import Landmarks
from tasks.point_scores import LandmarkScores, score_cell, score_titles
from tasks.points import ABSENT, OUTSIDE, PRESENT, PointTarget

MARKS = Landmarks(names=("a", "b"), partners=(0, 1))


def score_of(unit: str, rows: list[list[float]]) -> LandmarkScores:
    """Scores of one landmark from its states, errors, sides, diagonals and presences in images."""
    by_image = torch.tensor(rows, dtype=torch.float64)[:, None]
    return LandmarkScores(["a"], unit, torch.tensor([len(rows)]), by_image)


def test_the_errors_of_points_are_kept_in_double_precision():
    scores = LandmarkScores.of_images(("nose", "ear"), "px", images=2, device="cpu")
    assert scores.by_image.dtype == torch.float64


def test_radii_in_percent_are_of_the_longer_side_and_hold_their_border():
    errors = (2.0, 4.0, 6.0, 10.0, 20.0, 20.5)  # 1, 2, 3, 5, 10 and 10.25% of 200 pixels
    scores = score_of("px", [[PRESENT, error, 200, 250, 1] for error in errors])
    values = scores.values()
    shares = {key: round(6 * value) for key, value in values.items() if key.startswith("sdr/")}
    assert shares == {"sdr/1_percent": 1, "sdr/2_percent": 2, "sdr/3_percent": 3, "sdr/5_percent": 4}
    assert values["outliers"] == 1


def test_radii_in_mm_are_those_of_cephalometry_and_no_share_of_a_side():
    errors = (2.0, 2.5, 3.0, 4.0, 10.0, 10.5)
    scores = score_of("mm", [[PRESENT, error, 1000, 2000, 1] for error in errors])
    values = scores.values()
    shares = {key: round(6 * value) for key, value in values.items() if key.startswith("sdr/")}
    assert shares == {"sdr/2mm": 1, "sdr/2.5mm": 2, "sdr/3mm": 3, "sdr/4mm": 4}
    assert values["outliers"] == 1
    assert list(score_titles("mm").values())[:7] == [
        "mean (mm)",
        "std",
        "median",
        "<= 2 mm",
        "<= 2.5 mm",
        "<= 3 mm",
        "<= 4 mm",
    ]
    assert list(score_titles("px").values()) == [
        *("mean (px)", "std", "median", "<= 1%", "<= 2%", "<= 3%", "<= 5%", "outliers"),
        *("precision", "recall", "AUROC", "present", "absent"),
    ]
    assert list(score_titles("px"))[-5:-2] == ["presence_precision", "presence_recall", "presence_auroc"]
    three = score_of("mm", [[PRESENT, error, 1000, 2000, 1] for error in (2, 2, 3)])
    assert three.summary() == "mean radial error 2.33 mm, median 2.00 mm"


def test_a_point_is_found_from_even_chances_on():
    scores = score_of("px", [[PRESENT, 1, 100, 100, 0.5], [PRESENT, 1, 100, 100, 0.49], [ABSENT, 0, 100, 100, 0.5]])
    values = scores.values()
    assert (values["presence_precision"], values["presence_recall"]) == (0.5, 0.5)
    assert scores.comparison == pytest.approx(0.99 / 3)  # the absent one is found, which is as wrong as not to find one
    invented = score_of("px", [[PRESENT, 1, 100, 100, 0.1], [ABSENT, 0, 100, 100, 0.9]]).values()
    assert (invented["presence_precision"], invented["presence_recall"]) == (0, 0)
    silent = score_of("px", [[PRESENT, 1, 100, 100, 0.1]]).values()
    assert (silent["presence_precision"], silent["presence_auroc"], silent["absent"]) == (None, None, 0)


def test_where_no_point_is_absent_places_alone_are_compared():
    points = [[PRESENT, 10, 100, 100, 0.1], [PRESENT, 30, 100, 100, 0.9]]
    scores = score_of("px", points)
    assert scores.comparison == pytest.approx(0.8)
    assert scores.image_comparison == pytest.approx([0.9, 0.7])
    assert scores.values()["presence_recall"] == 0.5
    assert score_of("px", [*points, [ABSENT, 0, 100, 100, 0.1]]).comparison == pytest.approx((0 + 0.7 + 1) / 3)


def test_an_image_of_which_nothing_is_known_compares_as_the_worst():
    scores = score_of("px", [[PRESENT, 10, 100, 100, 0.9], [0, 0, 0, 0, 0]])
    assert scores.image_comparison == pytest.approx([0.9, 0])
    assert scores.comparison == pytest.approx(0.9)


def test_a_point_beyond_the_diagonal_is_as_bad_as_one_that_is_not_found():
    assert score_of("px", [[PRESENT, 300, 100, 120, 1], [PRESENT, 0, 100, 120, 1]]).comparison == 0.5


@pytest.mark.parametrize("seed", range(4))
def test_scores_of_landmarks_are_those_that_are_counted_point_by_point(seed):
    rng = np.random.default_rng(seed)
    states = rng.choice([PRESENT, ABSENT, OUTSIDE], (7, 3))
    states[2] = ABSENT  # an image without a point
    kept = np.zeros((7, 3, 5))
    is_inside = states != OUTSIDE
    kept[is_inside, 0] = states[is_inside]
    kept[..., 1] = rng.integers(0, 30, (7, 3)) * (states == PRESENT)
    kept[is_inside, 2:4] = [100, 125]
    kept[is_inside, 4] = rng.choice([0.2, 0.4, 0.5, 0.8], is_inside.sum())
    scores = LandmarkScores(("a", "b", "c"), "px", torch.tensor([is_inside.sum()]), torch.from_numpy(kept))
    present, absent = kept[states == PRESENT], kept[states == ABSENT]
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
    assert scores.values() == pytest.approx(expected)
    is_found = kept[..., 4] >= 0.5
    closeness = np.where(is_found == (states == PRESENT), np.clip(1 - kept[..., 1] / 125, 0, 1), 0)
    assert scores.comparison == pytest.approx(closeness[is_inside].mean())
    by_image = [closeness[row][is_inside[row]] for row in range(7)]
    assert scores.image_comparison == pytest.approx([values.mean() if len(values) else 0 for values in by_image])
    report = scores.report()
    second = kept[:, 1][states[:, 1] == PRESENT]
    assert report["by_landmark"]["b"]["mean_radial_error"] == pytest.approx(second[:, 1].mean())
    assert scores.record()["eval/mean_radial_error/b"] == pytest.approx(second[:, 1].mean())
    assert (report["unit"], report["closeness"], report["present"]) == ("px", scores.comparison, len(present))
    assert scores.brief() == {"closeness": scores.comparison, "mean_radial_error": pytest.approx(errors.mean())}
    assert f"median {np.median(errors):.2f} px, AUROC of presence {expected['presence_auroc']:.4f}" in scores.summary()


def test_landmarks_that_no_image_holds_have_no_errors():
    scores = score_of("px", [[ABSENT, 0, 100, 125, 0.25]])
    assert scores.comparison == 1
    assert scores.image_comparison == [1]
    assert scores.brief() == {"closeness": 1, "mean_radial_error": None}
    assert scores.summary() == "mean radial error n/a, median n/a"
    assert scores.table().splitlines()[1].split() == ["a", *["n/a"] * 7, "0", *["n/a"] * 3, "0", "1"]


def test_the_sides_of_an_image_are_those_of_its_file():
    target = PointTarget(
        points=torch.tensor([[[4.0, 9.0], [0.0, 0.0]]], dtype=torch.float64),
        states=torch.tensor([[PRESENT, OUTSIDE]]),
        size=torch.tensor([[30, 20]]),
        unit=torch.tensor([[2.0, 6.0]], dtype=torch.float64),  # the file has 60 x 120 pixels
    )
    scores = MARKS.new_scores(1)
    center = (torch.tensor([4.0, 9.0], dtype=torch.float64) + 0.5 + torch.tensor([3.0, 4 / 3])) / torch.tensor([30, 20])
    prediction = torch.stack([torch.cat([center, torch.tensor([0.75, 0.25])]), torch.ones(4)])[None]
    scores.add(prediction, target, 0)
    expected = [PRESENT, 10.0, 120.0, (60**2 + 120**2) ** 0.5, 0.75]
    assert scores.by_image[0, 0].tolist() == pytest.approx(expected)
    assert scores.by_image[0, 1].tolist() == [0] * 5  # whether it is there was not asked
    assert scores.sums.tolist() == [1]
    record = scores.record()
    assert not {"eval/present", "eval/absent"} & record.keys()
    assert record["eval/mean_radial_error/a"] == pytest.approx(10)
    assert record["eval/mean_radial_error/b"] is None


def test_cells_of_landmarks_have_digits_that_suit_them():
    for key in ("mean_radial_error", "radial_error_std", "median_radial_error"):
        assert score_cell(key, 1.23456) == "1.23"
    assert [score_cell(key, 1.23456) for key in ("sdr/2mm", "presence_auroc")] == ["1.235", "1.235"]
    assert [score_cell(key, 3.0) for key in ("outliers", "present", "absent")] == ["3", "3", "3"]
    assert score_cell("outliers", None) == "n/a"


def test_a_table_of_landmarks_is_as_wide_as_its_longest_name():
    names = ("a landmark of a long name", "b")
    lines = Landmarks(names=names, partners=(0, 1)).new_scores(1).table().splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert [line[:26].rstrip() for line in lines] == ["landmark", *names, "all"]
