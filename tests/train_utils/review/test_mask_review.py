"""The review of masks by runs that have not trained on them: opinions, findings and their order.

Modules: train_utils/review/masks.py.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.reviews import RunStandIn, cell_probabilities

from inference.review.agreement import Agreement
from inference.review.areas import IN_MASK, IN_PREDICTION, ComparedArea
from runtime.errors import DataError, UserError
from train_utils.review import masks
from train_utils.review.masks import (
    Doubt,
    MaskReview,
    missing_object,
    reported_findings,
    worst_first,
)

CPU = torch.device("cpu")


def mask_with_a_cell() -> np.ndarray:
    """(20, 30), a cell where `cell_probabilities((2, 2, 10, 12, ...))` sees one."""
    mask = np.zeros((20, 30), np.int64)
    mask[2:10, 2:12] = 1
    return mask


def mask_review(name: str, score: float, area_share: float = 0.0, missing: float = 0.0, **details) -> MaskReview:
    """A review without findings; `details` as in MaskReview."""
    content = {"findings": [], "shifts": [], "equal_to": None, "images": []} | details
    return MaskReview(name, score, area_share, missing, **content)


@pytest.fixture
def reviews_of_runs(monkeypatch) -> Callable[..., tuple[dict[str, MaskReview], list[str]]]:
    """A function that reviews the data set with the runs "a" and "b": the reviews by name, and the lines.

    0.png has a cell in its mask, 3.png has none. 1.png is damaged, and so is 2.png, which the runs know. Run "a" sees
    the cell and another one in 3.png, which it has trained on; run "b" sees a second cell in 0.png, whose mask it would
    move, and nothing in 3.png.
    """
    runs = {
        "a": RunStandIn("a", [cell_probabilities((2, 2, 10, 12, 0.9)), cell_probabilities((0, 20, 8, 28, 0.97))]),
        "b": RunStandIn("b", [cell_probabilities((2, 2, 10, 12, 0.8), (12, 20, 19, 29, 0.99)), cell_probabilities()]),
    }
    mask = mask_with_a_cell()
    moved = runs["b"].probabilities[0]

    def open_run(folder: Path, dataset: str | None, device: torch.device) -> RunStandIn:
        if folder.name not in runs:
            raise UserError("it is no folder of a run")
        assert dataset == "data"
        assert device.type == "cpu"
        return runs[folder.name]

    def predicted_slices(run: RunStandIn, index: int):
        if index == 1:
            raise DataError("1.png: cut")
        yield run.probabilities[index // 3], mask if index == 0 else np.zeros_like(mask)

    monkeypatch.setattr(masks, "open_reviewed_run", open_run)
    monkeypatch.setattr(masks, "predicted_slices", predicted_slices)
    monkeypatch.setattr(Agreement, "probabilities", lambda agreement: np.ones(len(agreement)))
    monkeypatch.setattr(masks, "equal_images", lambda train, val: {"3.png": train} if val == "a" else {})
    monkeypatch.setattr(masks, "best_shift", lambda probs, mask: (2, -1) if np.array_equal(probs, moved) else None)

    def review(*folders: str) -> tuple[dict[str, MaskReview], list[str]]:
        reviews, lines = masks.review_runs([Path(folder) for folder in folders], "data", CPU)
        return {review.name: review for review in reviews}, lines

    return review


def test_failures_are_a_line_each(reviews_of_runs):
    reviews, lines = reviews_of_runs("gone", "a", "b")
    assert lines == ["gone: it is no folder of a run; it is left out", *["1.png: cut; it is left out"] * 2]
    assert sorted(reviews) == ["0.png", "3.png"]


@pytest.mark.parametrize("name", ["0.png", "3.png"])
def test_scores_are_means_over_the_runs(reviews_of_runs, name):
    of_a, of_b, of_both = (reviews_of_runs(*runs)[0][name] for runs in (["a"], ["b"], ["a", "b"]))
    assert of_both.score == pytest.approx((of_a.score + of_b.score) / 2)
    assert of_both.area_share == pytest.approx((of_a.area_share + of_b.area_share) / 2)


def test_missing_object_that_one_of_two_runs_sees_counts_half(reviews_of_runs):
    reviews, _ = reviews_of_runs("a", "b")
    assert reviews["0.png"].missing == pytest.approx(0.99 / 2)
    assert reviews["3.png"].missing == pytest.approx(0.97 / 2)


def test_findings_and_shifts_are_those_of_the_first_run(reviews_of_runs):
    of_b, of_both = (reviews_of_runs(*runs)[0]["0.png"] for runs in ("b", "ab"))
    assert of_b.findings != []
    assert of_b.shifts == ["the mask fits better when it is moved by +2 rows and -1 columns"]
    assert of_both.findings == []
    assert of_both.shifts == []


def test_equal_training_image_of_any_run_is_a_problem(reviews_of_runs):
    reviews, _ = reviews_of_runs("a", "b")
    (finding,) = reviews["3.png"].findings
    equal = "the image is equal to the training image training of a"
    assert reviews["0.png"].equal_to is None
    assert reviews["3.png"].equal_to == "training of a"
    assert reviews["3.png"].problems == [f"{finding.text} (97% sure)", equal]


def test_masks_come_by_the_product_of_their_places_behind_shifted_ones():
    reviews = [
        mask_review("worst by score", 0.1),
        mask_review("early in all", 0.2, 0.3, 0.3),
        mask_review("likeliest to lack an object", 0.5, 0.1, 0.5),
        mask_review("worst by areas", 0.4, 0.5),
        mask_review("shifted", 0.7, shifts=["moved"]),
        mask_review("right", 0.8),
        mask_review("may lack an object", 0.9, 0.0, 0.1),
    ]
    # products of places: 18.5, 5.7, 6.9, 21, -, 111.1 and 55.6
    order = [4, 1, 2, 0, 3, 6, 5]
    assert worst_first(reviews) == [reviews[index] for index in order]
    assert worst_first(reviews[::-1]) == worst_first(reviews)


AREAS = [
    ComparedArea(IN_PREDICTION, "car", 50, 0.9, False, "car is missing"),
    ComparedArea(IN_PREDICTION, "sign", 50, 0.9, False, "sign is missing"),
    ComparedArea(IN_MASK, "car", 50, 1.0, False, "car is not seen"),
    ComparedArea(IN_PREDICTION, "car", 50, 1.0, False, None),
    ComparedArea(IN_MASK, "car", 50, 0.7, False, "car is hardly seen"),
]
AGREEMENTS = [0.8, 0.7, 0.9, 0.75, 1.0]
DOUBTS = [Doubt(number, area) for number, area in enumerate(AREAS)]


def test_the_confidence_of_a_finding_is_that_of_the_model_times_the_agreement():
    findings = reported_findings(DOUBTS, AGREEMENTS)
    assert [finding.text for finding in findings] == ["car is not seen", "car is missing", "car is hardly seen"]
    assert [finding.confidence for finding in findings] == pytest.approx([0.9, 0.72, 0.7])


@pytest.mark.parametrize(
    ("doubts", "confidence"),
    [
        pytest.param(DOUBTS, 0.75, id="not told"),
        pytest.param(DOUBTS[:2], 0.72, id="told"),
        pytest.param(DOUBTS[2:3], 0, id="in the mask"),
    ],
)
def test_the_missing_object_is_the_likeliest_of_the_prediction(doubts, confidence):
    assert missing_object(doubts, AGREEMENTS) == pytest.approx(confidence)


def test_masks_without_wrong_areas_have_the_last_place_by_areas():
    reviews = [
        mask_review("no areas", 0.2, 0.0, 0.9),
        mask_review("areas", 0.1, 0.5, 0.5),
        mask_review("less", 0.3, 0.0, 0.6),
        mask_review("least", 0.4),
    ]
    # products of places: 4, 3, 12 and 32
    assert worst_first(reviews) == [reviews[index] for index in (1, 0, 2, 3)]
