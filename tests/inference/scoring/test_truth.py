"""Masks compared with the true ones: which pixel counts, in which strips, and what is said of an image.

Modules: inference/scoring/truth.py.
"""

from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from inference.outputs.jobs import ImageJob
from inference.scoring.components import area_report
from inference.scoring.truth import ImageScore, ImageScorer, MaskRows, ScoreError, TruthScorer, open_mask_rows
from PIL import Image
from support.prediction import matrix_of

from data_utils.class_map import ClassMap
from data_utils.image_io.formats import PageFile
from inference.outputs.classes import ClassFormat
from inference.scoring import truth as truth_module
from inference.scoring.boundary import BoundaryScores, boundary_scores
from runtime.errors import DataError
from tasks.classes import Classes, ClassScores, ClassTarget
from tasks.matching import pack_labels
from tasks.objects import Objects, ObjectTarget
from tasks.overlapping import Overlapping, OverlapTarget

CLASSES = ClassMap(("sky", "land", "sea"), (10, 200, 255), None)
TASK = Classes(CLASSES.names)
NAN = float("nan")


def rows_of(truth: np.ndarray, read_rows: list | None = None) -> MaskRows:
    """The rows of a true mask of class indices."""

    def read(top: int, bottom: int) -> ClassTarget:
        if read_rows is not None:
            read_rows.append((top, bottom))
        return ClassTarget(truth[top:bottom])

    return MaskRows(Path("truth.png"), truth.shape, read)


@pytest.mark.parametrize(("size", "strip"), [((7, 5), 2), ((7, 5), 7), ((14, 10), 3), ((3, 2), 1), ((21, 5), 4)])
def test_the_predicted_pixel_under_the_center_of_each_true_one_counts(size, strip):
    rng = np.random.default_rng(0)
    pred = rng.integers(0, 3, (7, 5), np.uint8)
    truth = rng.choice(np.uint8([0, 1, 2, 255]), size)
    read_rows: list[tuple[int, int]] = []
    scorer = TruthScorer(TASK, pred.shape, rows_of(truth, read_rows), boundary=True)
    for top in range(0, 7, strip):
        scorer.add(pred[top : top + strip])
    rows = [int((row + 0.5) * 7 / size[0]) for row in range(size[0])]
    columns = [int((column + 0.5) * 5 / size[1]) for column in range(size[1])]
    under_centers = pred[np.ix_(rows, columns)]
    score = scorer.score()
    assert score.scores.sums.tolist() == matrix_of(under_centers, truth)
    assert [row for first, last in read_rows for row in range(first, last)] == list(range(size[0]))
    assert score.to_json("a")["boundary_iou"] == boundary_scores(under_centers, truth, 3).to_json()["boundary_iou"]
    assert score.areas is not None


@pytest.mark.parametrize("size", [(14, 10), (3, 2)])
def test_predictions_are_as_sure_as_under_the_centers_of_true_pixels(size):
    rng = np.random.default_rng(0)
    pred = rng.integers(0, 3, (7, 5), np.uint8)
    certainty = rng.random((7, 5)).astype(np.float32)
    truth = rng.choice(np.uint8([0, 1, 2, 255]), size)
    scorer = TruthScorer(TASK, pred.shape, rows_of(truth))
    for top in range(0, 7, 3):
        scorer.add(pred[top : top + 3], certainty=certainty[top : top + 3])
    centers = [
        [int((place + 0.5) * side / true) for place in range(true)] for side, true in zip((7, 5), size, strict=True)
    ]
    under_centers = np.ix_(*centers)
    whole = TruthScorer(TASK, size, rows_of(truth))
    whole.add(pred[under_centers], certainty=certainty[under_centers])
    assert torch.equal(scorer.score().scores.reliability, whole.score().scores.reliability)
    assert scorer.score().scores.reliability[:, 0].sum() == (truth != 255).sum()


def test_each_class_that_overlaps_is_as_sure_as_under_the_centers_of_true_pixels():
    rng = np.random.default_rng(0)
    task = Overlapping(("a", "b"))
    certainty = rng.random((2, 6, 4)).astype(np.float32)
    certainty[0] /= 2  # the first class is nowhere
    pred = 2 * (certainty[1] > 0.5).astype(np.int32)

    def read(top: int, bottom: int) -> OverlapTarget:
        size = (bottom - top, 2)
        return OverlapTarget(np.full(size, 2, np.int32), np.full(size, 3, np.int32))

    scorer = TruthScorer(task, (6, 4), MaskRows("truth.png", (3, 2), read))
    for top in (0, 4):
        scorer.add(pred[top : top + 4], certainty=certainty[:, top : top + 4])
    whole = TruthScorer(task, (3, 2), MaskRows("truth.png", (3, 2), read))
    whole.add(pred[1::2, 1::2], certainty=certainty[:, 1::2, 1::2])
    reliability = scorer.score().scores.reliability
    assert torch.equal(reliability, whole.score().scores.reliability)
    assert reliability[:, 0].sum() == 12  # 6 pixels of 2 classes


@pytest.mark.parametrize("size", [(7, 5), (14, 10), (3, 2)])
def test_true_pixels_whose_center_lies_where_the_image_holds_no_data_do_not_count(size):
    rng = np.random.default_rng(0)
    pred = rng.integers(0, 3, (7, 5), np.uint8)
    missing = rng.random((7, 5)) < 0.4
    truth = rng.integers(0, 3, size, np.uint8)
    scorer = TruthScorer(TASK, pred.shape, rows_of(truth))
    for top in range(0, 7, 3):
        scorer.add(pred[top : top + 3], missing[top : top + 3])
    centers = [
        [int((place + 0.5) * side / true) for place in range(true)] for side, true in zip((7, 5), size, strict=True)
    ]
    under_centers = np.ix_(*centers)
    known = np.where(missing[under_centers], 255, truth)
    assert scorer.score().scores.sums.tolist() == matrix_of(pred[under_centers], known)


def test_predictions_are_as_sure_as_where_the_image_holds_data():
    pred = np.array([[0, 1, 1], [2, 2, 0]], np.uint8)
    missing = np.array([[False, True, False], [True, False, False]])
    scorer = TruthScorer(TASK, pred.shape, rows_of(pred))
    scorer.add(pred, missing, np.full((2, 3), 0.9, np.float32))
    assert scorer.score().scores.reliability[:, 0].sum() == 4


def test_a_true_mask_is_read_from_its_page(tmp_path):
    pages = np.zeros((2, 4, 6), np.uint8)
    pages[0] = 10
    pages[1] = 200
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack")
    with open_mask_rows(PageFile(tmp_path / "a.tif", 1), ClassFormat(CLASSES).reader) as rows:
        assert rows.size == (4, 6)
        assert rows.read(1, 3).main.tolist() == [[1] * 6] * 2


def test_areas_of_classes_are_counted_where_a_model_has_classes():
    assert TruthScorer(TASK, (4, 6), None).score().areas is not None
    assert TruthScorer(Objects(Classes(("background", "cell"))), (4, 6), None).score().areas is None


@pytest.mark.parametrize("error", [DataError, OSError])
def test_a_mask_that_cannot_be_opened_is_a_problem_of_the_score(tmp_path, monkeypatch, error):
    def refuse(*arguments: object) -> None:
        raise error("damaged")

    monkeypatch.setattr(truth_module, "open_mask_rows", refuse)
    job = ImageJob(image=tmp_path / "a.tif", size=(4, 6), output=tmp_path / "a", truth=PageFile(tmp_path / "t.png"))
    scorer = ImageScorer(ClassFormat(CLASSES), TASK)
    with scorer.open(job, (4, 6)) as opened:
        assert str(opened.problem) == "damaged"
    with pytest.raises(ScoreError, match=r"^damaged$"):
        scorer.score(job)


def test_areas_that_touch_the_last_row_are_counted():
    truth = np.zeros((30, 40), np.uint8)
    truth[25:, 3:5] = 1  # 10 pixels
    truth[2:4, 20:22] = 1
    scorer = TruthScorer(TASK, truth.shape, rows_of(truth))
    for top in range(0, 30, 10):
        scorer.add(truth[top : top + 10])
    report = area_report([scorer.score().areas], TASK.names)["by_class"]["land"]
    assert report["areas"] == 2
    assert report["found"] == 2
    assert report["predicted"] == 2
    assert report["false"] == 0


def test_an_object_that_lies_in_several_strips_is_one():
    ids = np.zeros((6, 3), np.int32)
    ids[1:5, :2] = 7
    mask = (ids > 0).astype(np.uint8)
    true_rows = MaskRows("truth.png", ids.shape, lambda *rows: ObjectTarget(mask[slice(*rows)], ids[slice(*rows)]))
    scorer = TruthScorer(Objects(), ids.shape, true_rows)
    for top in range(0, 6, 2):
        scorer.add(pack_labels(ids, mask)[top : top + 2])
    assert scorer.score().scores.brief() == {
        "ap50": 1,
        "objects": 1,
        "predicted": 1,
        "found": 1,
        "split": 0,
        "merged": 0,
    }


def test_a_true_mask_with_a_problem_counts_nothing():
    scorer = TruthScorer(TASK, (6, 2), None, DataError("no mask"))
    scorer.add(np.zeros((6, 2), np.uint8))
    assert scorer.scores.sums.sum() == 0


@pytest.fixture
def three_pixels() -> ClassScores:
    """The scores of an image with three pixels that count, two of which are right."""
    scores = TASK.new_scores(1)
    scores.add(torch.tensor([[[0, 0, 1, 1]]]), ClassTarget(torch.tensor([[[0, 1, 1, 255]]])), 0)
    return scores


def test_the_score_of_an_image_is_reported_with_its_name_by_its_means(three_pixels):
    assert ImageScore(three_pixels, None).to_json("a.png") == {
        "image": "a.png",
        "mean_iou": 0.5,
        "pixel_accuracy": pytest.approx(2 / 3),
    }


def test_the_score_of_an_image_is_reported_with_its_boundaries(three_pixels):
    boundary = BoundaryScores(
        np.array([1, 0, 0]), np.array([4, 2, 0]), np.array([1.5, NAN, NAN]), np.array([False, True, False])
    )
    plain = ImageScore(three_pixels, None).to_json("a.png")
    score = ImageScore(three_pixels, boundary).to_json("a.png")
    assert score == plain | {"boundary_iou": [0.25, 0.0, None], "hd95": [1.5, None, None]}


def written_job(folder: Path, pred: np.ndarray, truth: np.ndarray) -> ImageJob:
    """An image whose mask is written, with its true mask."""
    table = np.uint8(CLASSES.values)
    Image.fromarray(table[pred]).save(folder / "a.png")
    Image.fromarray(table[truth]).save(folder / "truth.png")
    truth_file = PageFile(folder / "truth.png")
    return ImageJob(image=folder / "a.tif", size=pred.shape, output=folder / "a", truth=truth_file)


PRED, TRUTH = np.random.default_rng(0).integers(0, 3, (2, 11, 6), np.uint8)


def test_a_true_mask_of_other_proportions_is_refused(tmp_path):
    job = written_job(tmp_path, PRED, TRUTH[:, :3])
    with pytest.raises(ScoreError, match=r"truth\.png: is 11 x 3, but the image 11 x 6; they differ in proportions$"):
        ImageScorer(ClassFormat(CLASSES), TASK).score(job)


def test_a_true_mask_that_is_gone_is_named(tmp_path):
    job = written_job(tmp_path, PRED, TRUTH)
    (tmp_path / "truth.png").unlink()
    with pytest.raises(ScoreError, match=r"truth\.png"):
        ImageScorer(ClassFormat(CLASSES), TASK).score(job)


def scored(folder: Path, truth: tuple[int, int], mask: tuple[int, int]) -> ClassScores:
    """The scores of a mask of 4 x 6 whose upper half is of the second class, where the truth is all of the first."""
    Image.fromarray(np.zeros(truth, np.uint8)).save(folder / "truth.png")
    values = np.zeros(mask, np.uint8)
    values[: mask[0] // 2] = 1
    Image.fromarray(values).save(folder / "a.png")
    scorer = ImageScorer(ClassFormat(ClassMap(("a", "b"), (0, 1), None)), Classes(("a", "b")))
    done = ImageJob(image=folder / "a.tif", size=(4, 6), output=folder / "a", truth=PageFile(folder / "truth.png"))
    return scorer.score(done).scores


@pytest.mark.parametrize(("truth", "count"), [((4, 6), 12), ((2, 3), 3), ((8, 12), 48)])
def test_a_written_mask_is_scored_by_the_pixels_of_the_truth(tmp_path, truth, count):
    assert scored(tmp_path, truth, (4, 6)).sums.tolist() == [[count, count], [0, 0]]


@pytest.mark.parametrize(
    ("truth", "mask", "line"),
    [
        ((4, 6), (8, 12), r"a\.png: is 8 x 12, but the image 4 x 6$"),
        ((4, 12), (4, 6), r"truth\.png: is 4 x 12, but the image 4 x 6; they differ in proportions"),
    ],
    ids=["mask", "truth"],
)
def test_a_written_mask_is_not_scored_where_sizes_do_not_fit(tmp_path, truth, mask, line):
    with pytest.raises(ScoreError, match=line):
        scored(tmp_path, truth, mask)
