"""The review of masks by runs that have not trained on them: findings and their order.

Modules: train_utils/review/reviews.py.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.networks import tiny
from support.reviews import mask_review

from data_utils.sources.records import ListRows, Records
from runtime.errors import DataError, UserError
from tasks.classes.loss import Classes
from train_utils.review import reviews as reviews_module
from train_utils.review.reviewed_masks import Area
from train_utils.review.reviews import MaskReview, ReviewedSlice, worst_first, worst_slices
from unet.config import Preprocess


class RunStandIn:
    """A ReviewedRun of two classes with four validation images, of which number 2 is damaged.

    Args:
        probabilities: what its model says, (2, H, W) for each image or slice that a test shows to it.
    """

    has_volumes = False
    dataset = "data"

    def __init__(self, name: str, probabilities: list[np.ndarray]) -> None:
        self.name = name
        self.probabilities = probabilities
        reader = SimpleNamespace(class_names=("around", "cell"))
        self.predictor = SimpleNamespace(task=Classes(reader.class_names))
        self.info = SimpleNamespace(reader=reader, train=SimpleNamespace(records=None), val=FourImages())


class FourImages:
    """The validation images of a RunStandIn."""

    def __init__(self) -> None:
        rows = ListRows([{"image": None, "target": None, "name": f"{index}.png"} for index in range(4)])
        self.records = Records(rows)
        self.bad = {2: "cut"}

    def __len__(self) -> int:
        return 4


def cell_probabilities(*boxes: tuple[int, int, int, int, float]) -> np.ndarray:
    """(2, 20, 30), the answer of a model that sees cells in boxes (top, left, bottom, right), each so surely."""
    cell = np.full((20, 30), 0.05, np.float32)
    for top, left, bottom, right, probability in boxes:
        cell[top:bottom, left:right] = probability
    return np.stack([1 - cell, cell])


CPU = torch.device("cpu")


def mask_with_a_cell() -> np.ndarray:
    """(20, 30), a cell where `cell_probabilities((2, 2, 10, 12, ...))` sees one."""
    mask = np.zeros((20, 30), np.int64)
    mask[2:10, 2:12] = 1
    return mask


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
        assert (dataset, device) == ("data", CPU)
        return runs[folder.name]

    def predicted_slices(run: RunStandIn, index: int):
        if index == 1:
            raise DataError("1.png: cut")
        yield run.probabilities[index // 3], mask if index == 0 else np.zeros_like(mask)

    def certain(areas: list[Area]) -> None:
        for area in areas:
            area.confidence = area.probability

    monkeypatch.setattr(reviews_module, "open_reviewed_run", open_run)
    monkeypatch.setattr(reviews_module, "predicted_slices", predicted_slices)
    monkeypatch.setattr(reviews_module, "rate_areas", certain)
    monkeypatch.setattr(
        reviews_module,
        "equal_images",
        lambda train, val: {"3.png": "t.png"} if val is runs["a"].info.val.records else {},
    )
    monkeypatch.setattr(
        reviews_module, "best_shift", lambda probs, mask: (2, -1) if np.array_equal(probs, moved) else None
    )

    def review(*folders: str) -> tuple[dict[str, MaskReview], list[str]]:
        reviews, lines = reviews_module.review_runs([Path(folder) for folder in folders], "data", CPU)
        return {review.name: review for review in reviews}, lines

    return review


def test_failures_are_a_line_each(reviews_of_runs):
    reviews, lines = reviews_of_runs("gone", "a", "b")
    assert lines == ["gone: it is no folder of a run; it is left out", *["1.png: cut; it is left out"] * 2]
    assert sorted(reviews) == ["0.png", "3.png"]


def test_an_image_that_two_runs_hold_out_is_reviewed_by_the_first(reviews_of_runs):
    of_a, of_both = (reviews_of_runs(*runs)[0]["0.png"] for runs in (["a"], ["a", "b"]))
    assert of_both.score == of_a.score
    assert of_both.problems == []
    assert of_both.run.name == "a"


def test_a_mask_that_lacks_an_object_and_is_shifted_has_two_problems(reviews_of_runs):
    review = reviews_of_runs("b")[0]["0.png"]
    missing, shift = review.problems
    assert missing.startswith("cell of 63 pixels at row 15, column 24 is missing in the mask")
    assert shift == "the mask fits better when it is moved by +2 rows and -1 columns"
    assert review.missing == pytest.approx(0.99)


def test_the_background_may_be_any_class(monkeypatch):
    run = RunStandIn("a", [])
    said = []
    classes = (
        (("around", "cell"), (0, 1), 0),
        (("cell", "background"), (0, 1), 1),
        (("cell", "other"), (255, 0), 1),
    )
    for names, values, background in classes:
        run.info.reader = SimpleNamespace(class_names=names)
        run.predictor.task = Classes.from_config(tiny(preprocess=Preprocess(class_names=names, class_values=values)))
        probabilities = cell_probabilities((2, 2, 10, 12, 0.9), (12, 20, 19, 29, 0.99))
        mask = mask_with_a_cell()
        if background:
            probabilities, mask = probabilities[::-1], 1 - mask
        monkeypatch.setattr(
            reviews_module, "predicted_slices", lambda run, index, *, found=(probabilities, mask): [found]
        )
        (part,) = worst_slices(run, 0, [])
        said.append((part.area_share, [area.text for area in part.areas]))
    assert said[0] == said[1] == said[2]
    assert said[0][1] == ["cell of 63 pixels at row 15, column 24 is missing in the mask"]


def test_masks_come_by_the_product_of_their_places_behind_shifted_ones():
    reviews = [
        mask_review("worst by score", 0.1),
        mask_review("early in all", 0.2, 0.3, 0.3),
        mask_review("likeliest to lack an object", 0.5, 0.1, 0.5),
        mask_review("worst by areas", 0.4, 0.5),
        mask_review("shifted", 0.7, shifted=True),
        mask_review("right", 0.8),
        mask_review("may lack an object", 0.9, 0.0, 0.1),
    ]
    # products of places: 18.5, 5.7, 6.9, 21, -, 111.1 and 55.6
    order = [4, 1, 2, 0, 3, 6, 5]
    assert worst_first(reviews) == [reviews[index] for index in order]
    assert worst_first(reviews[::-1]) == worst_first(reviews)


def test_findings_are_the_surest_first_from_seventy_percent_on():
    areas = [
        Area(False, "car", 50, 0.9, False, "car is missing", 0.72),
        Area(False, "sign", 50, 0.9, False, "sign is missing", 0.63),
        Area(True, "car", 50, 1.0, False, "car is not seen", 0.9),
        Area(False, "car", 50, 1.0, False, None, 0.75),
    ]
    review = MaskReview("a.png", RunStandIn("a", []), 0, [ReviewedSlice(0, 0.5, 0.0, None, areas)])
    assert review.problems == ["car is not seen (90% sure)", "car is missing (72% sure)"]
    assert review.missing == 0.75


def test_a_volume_is_judged_by_its_three_worst_slices(monkeypatch):
    """The second of six slices is unlabeled."""
    run = RunStandIn("a", [])
    run.has_volumes = True
    sure = cell_probabilities((2, 2, 10, 12, 0.9))
    mask = mask_with_a_cell()
    shares = (0.9, 0.1, 0.5, 0.95, 0.6, 0.7)
    slices = [(np.where(sure > 0.5, share, 1 - share).astype(np.float32), mask) for share in shares]
    slices[1] = (slices[1][0], np.full_like(mask, 255))
    monkeypatch.setattr(reviews_module, "predicted_slices", lambda run, index: iter(slices))
    of_volume = MaskReview("a", run, 0, worst_slices(run, 0, []))
    assert [part.number for part in of_volume.slices] == [2, 4, 5]
    assert of_volume.score == pytest.approx(0.6, abs=1e-6)
    monkeypatch.setattr(reviews_module, "predicted_slices", lambda run, index: iter(slices[1:2]))
    assert worst_slices(run, 0, []) == []
