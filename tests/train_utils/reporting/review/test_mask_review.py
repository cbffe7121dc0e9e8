"""The review of masks by runs that have not trained on them: opinions, findings and their order.

Modules: train_utils/reporting/review/masks.py.
"""

import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from support.reviews import RunStandIn, cell_probabilities

from inference.review.agreement import Agreement
from inference.review.areas import IN_MASK, IN_PREDICTION, ComparedArea
from runtime.errors import DataError, UserError
from train_utils.reporting.review import masks
from train_utils.reporting.review.masks import (
    Doubt,
    Finding,
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


def test_scores_are_worse_where_a_run_sees_another_cell(reviews_of_runs):
    of_a, of_b = (reviews_of_runs(run)[0]["0.png"] for run in "ab")
    assert of_a.score != of_b.score
    assert of_a.area_share < of_b.area_share


@pytest.mark.parametrize(("name", "number"), [("0.png", 0), ("3.png", 3)])
def test_images_of_a_review_are_those_of_all_runs(reviews_of_runs, name, number):
    reviews, _ = reviews_of_runs("a", "b")
    places = [(image.run.name, image.number, [*image.slices]) for image in reviews[name].images]
    assert places == [("a", number, [0]), ("b", number, [0])]


@pytest.mark.parametrize(("name", "probability"), [("0.png", 0.99), ("3.png", 0.97)])
def test_missing_object_that_one_of_two_runs_sees_counts_half(reviews_of_runs, name, probability):
    reviews, _ = reviews_of_runs("a", "b")
    assert reviews[name].missing == pytest.approx(probability / 2)


def test_findings_are_those_of_the_first_run(reviews_of_runs):
    assert reviews_of_runs("b")[0]["0.png"].findings != []
    assert reviews_of_runs("a", "b")[0]["0.png"].findings == []


def test_shifts_are_those_of_the_first_run(reviews_of_runs):
    assert len(reviews_of_runs("b")[0]["0.png"].shifts) == 1
    assert reviews_of_runs("a", "b")[0]["0.png"].shifts == []


def test_finding_is_as_sure_as_the_model(reviews_of_runs):
    (finding,) = reviews_of_runs("a", "b")[0]["3.png"].findings
    assert finding.text.startswith("cell of ")
    assert finding.confidence == pytest.approx(0.97)


def test_areas_of_all_runs_tell_how_often_masks_agree(reviews_of_runs, monkeypatch):
    counts = []

    def count_areas(agreement: Agreement) -> np.ndarray:
        counts.append(len(agreement))
        return np.ones(len(agreement))

    monkeypatch.setattr(Agreement, "probabilities", count_areas)
    for runs in ("a", "b", "ab"):
        reviews_of_runs(*runs)
    assert min(counts) > 0
    assert counts[2] == counts[0] + counts[1]


def test_equal_training_image_of_any_run_is_a_problem(reviews_of_runs):
    reviews, _ = reviews_of_runs("a", "b")
    (finding,) = reviews["3.png"].findings
    equal = "the image is equal to the training image training of a"
    assert reviews["0.png"].equal_to is None
    assert reviews["3.png"].equal_to == "training of a"
    assert reviews["3.png"].problems == [f"{finding.text} (97% sure)", equal]


def test_findings_in_volumes_name_their_slice(reviews_of_runs, monkeypatch):
    (in_image,) = reviews_of_runs("a", "b")[0]["3.png"].findings
    monkeypatch.setattr(RunStandIn, "has_volumes", True)
    (in_slice,) = reviews_of_runs("a", "b")[0]["3.png"].findings
    assert in_slice.text == f"slice 0: {in_image.text}"


def test_images_behind_one_of_which_nothing_is_known_are_reviewed(monkeypatch):
    run = RunStandIn("a", [cell_probabilities((2, 2, 10, 12, 0.9))])
    unknown = np.full((20, 30), 255)
    monkeypatch.setattr(masks, "open_reviewed_run", lambda folder, dataset, device: run)
    monkeypatch.setattr(masks, "equal_images", lambda train, val: {})

    def predicted_slices(run: RunStandIn, index: int):
        yield run.probabilities[0], np.zeros_like(unknown) if index else unknown

    monkeypatch.setattr(masks, "predicted_slices", predicted_slices)
    reviews, lines = masks.review_runs([Path("a")], None, CPU)
    assert {review.name for review in reviews} == {"1.png", "3.png"}
    assert lines == []


def test_problems_of_a_mask_are_findings_shifts_or_an_equal_image():
    findings = [Finding("cell is missing", 0.914), Finding("cell is not seen", 0.75)]
    review = mask_review("a.png", 0.5, findings=findings, shifts=["moved", "turned"], equal_to="b.png")
    assert review.problems == [
        "cell is missing (91% sure)",
        "cell is not seen (75% sure)",
        "moved",
        "turned",
        "the image is equal to the training image b.png",
    ]


def test_an_equal_image_may_be_the_only_problem():
    review = mask_review("a.png", 0.5, equal_to="b.png")
    assert review.problems == ["the image is equal to the training image b.png"]


def test_a_failure_that_is_no_fault_of_the_data_ends_a_review(reviews_of_runs, monkeypatch):
    monkeypatch.setattr(masks, "predicted_slices", Mock(side_effect=ValueError("a mistake in the program")))
    with pytest.raises(ValueError, match="a mistake in the program"):
        reviews_of_runs("a")


@pytest.fixture
def reviews_of_slices(monkeypatch) -> Callable[..., list[MaskReview]]:
    """A function that reviews one volume with this mask in each slice, which a model answers by these numbers.

    Answer 0 is right; in 1 and 2, the model sees a cell elsewhere.
    """
    boxes = [(2, 2, 10, 12, 0.9), (0, 20, 8, 28, 0.97), (12, 5, 18, 25, 0.99)]
    run = RunStandIn("a", [cell_probabilities(box) for box in boxes])
    run.has_volumes = True
    run.info.val.bad = {1: "cut", 2: "cut", 3: "cut"}
    monkeypatch.setattr(masks, "open_reviewed_run", lambda folder, dataset, device: run)
    monkeypatch.setattr(masks, "equal_images", lambda train, val: {})
    monkeypatch.setattr(masks, "best_shift", lambda probabilities, mask: (1, -2))
    monkeypatch.setattr(Agreement, "probabilities", lambda agreement: np.ones(len(agreement)))

    def review(mask: np.ndarray, *answers: int) -> list[MaskReview]:
        slices = [(run.probabilities[answer], mask) for answer in answers]
        monkeypatch.setattr(masks, "predicted_slices", lambda run, index: iter(slices))
        reviews, _ = masks.review_runs([Path("a")], None, CPU)
        return reviews

    return review


def test_score_of_a_volume_is_the_mean_over_its_slices(reviews_of_slices):
    mask = mask_with_a_cell()
    ((first,), (second,), (third,)) = (reviews_of_slices(mask, answer) for answer in range(3))
    (volume,) = reviews_of_slices(mask, 0, 1, 2)
    assert volume.score == pytest.approx((first.score + second.score + third.score) / 3)
    assert volume.area_share == pytest.approx((first.area_share + second.area_share + third.area_share) / 3)


def test_slices_of_a_volume_come_with_the_worst_first(reviews_of_slices):
    (volume,) = reviews_of_slices(mask_with_a_cell(), 0, 1, 2)
    order = [*volume.images[0].slices]
    moved = "the mask fits better when it is moved by +1 rows and -2 columns"
    assert sorted(order) == [0, 1, 2]
    assert order[2] == 0
    assert volume.shifts == [f"slice {number}: {moved}" for number in order]


def test_findings_of_a_volume_are_those_of_all_its_slices(reviews_of_slices):
    mask = mask_with_a_cell()
    ((right,), (second,), (third,)) = (reviews_of_slices(mask, answer) for answer in range(3))
    (volume,) = reviews_of_slices(mask, 0, 1, 2)
    of_slices = [finding.text.partition(": ")[2] for finding in (*second.findings, *third.findings)]
    places, _, texts = zip(*(finding.text.partition(": ") for finding in volume.findings), strict=True)
    assert right.findings == []
    assert len(of_slices) >= 2
    assert sorted(texts) == sorted(of_slices)
    assert {*places} == {"slice 1", "slice 2"}


def test_three_slices_of_a_longer_volume_are_judged(reviews_of_slices):
    (volume,) = reviews_of_slices(mask_with_a_cell(), 1, 1, 2, 2)
    judged = {f"slice {number}" for number in volume.images[0].slices}
    assert len(judged) == 3
    assert {finding.text.partition(": ")[0] for finding in volume.findings} == judged


def test_probabilities_of_few_slices_of_a_volume_are_in_memory(reviews_of_slices, monkeypatch):
    references, counts = [], []

    def predicted_slices(run: RunStandIn, index: int):
        for _ in range(9):
            probabilities = cell_probabilities((2, 2, 10, 12, 0.9))
            references.append(weakref.ref(probabilities))
            counts.append(sum(reference() is not None for reference in references))
            yield probabilities, mask_with_a_cell()

    monkeypatch.setattr(masks, "predicted_slices", predicted_slices)
    masks.review_runs([Path("a")], None, CPU)
    assert len(counts) == 9
    assert max(counts) <= 5  # the three worst ones, the one that was judged last, and the next


def test_volume_of_which_nothing_is_known_is_not_reviewed(reviews_of_slices):
    assert reviews_of_slices(np.full((20, 30), 255), 0, 1) == []


def test_doubts_are_reported_where_the_model_is_sure(monkeypatch):
    areas = [
        ComparedArea(IN_MASK, "cell", 50, 0.9, True, None),
        ComparedArea(IN_PREDICTION, "cell", 50, 0.7, False, "cell is missing"),
        ComparedArea(IN_PREDICTION, "cell", 50, 0.69, False, "cell may be missing"),
        ComparedArea(IN_MASK, "cell", 50, 0.9, False, None),
    ]
    monkeypatch.setattr(masks, "compare_areas", lambda *arguments: iter(areas))
    agreement = Agreement()
    doubts = masks.doubted_areas(np.zeros((2, 4, 6)), np.zeros((4, 6)), ("around", "cell"), agreement, "slice 3: ")
    told = [(doubt.number, doubt.area.probability, doubt.area.text) for doubt in doubts]
    assert told == [(1, 0.7, "slice 3: cell is missing"), (2, 0.69, None), (3, 0.9, None)]
    assert len(agreement) == 4  # all areas are counted


@pytest.mark.parametrize(("has_slices", "where"), [(True, "slice 4: "), (False, "")])
def test_a_shift_is_reported_with_its_rows_and_columns(monkeypatch, has_slices, where):
    monkeypatch.setattr(masks, "best_shift", lambda probabilities, mask: mask)
    slices = [
        SimpleNamespace(number=number, probabilities=None, mask=mask) for number, mask in ((3, None), (4, (0, -1)))
    ]
    line = f"{where}the mask fits better when it is moved by +0 rows and -1 columns"
    assert masks.shift_lines(slices, has_slices) == [line]


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


def test_masks_without_wrong_areas_have_the_last_place_by_areas():
    reviews = [
        mask_review("no areas", 0.2, 0.0, 0.9),
        mask_review("areas", 0.1, 0.5, 0.5),
        mask_review("less", 0.3, 0.0, 0.6),
        mask_review("least", 0.4),
    ]
    # products of places: 4, 3, 12 and 32
    assert worst_first(reviews) == [reviews[index] for index in (1, 0, 2, 3)]


def test_masks_with_equal_products_come_by_name():
    b = mask_review("b", 0.1, 0.0, 0.1)
    a = mask_review("a", 0.2, 0.0, 0.2)
    assert worst_first([b, a]) == [a, b]


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
