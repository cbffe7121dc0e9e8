"""Masks compared with the true ones: which pixel counts, and what is said of an image.

Modules: tasks/scoring/masks.py.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.formats import format_of
from support.prediction import image_job, matrix_of, score_labels

from data_utils.class_map import ClassMap
from data_utils.image_io.formats import PageFile
from data_utils.target import Target
from runtime.errors import DataError
from runtime.scratch import row_spans
from tasks.classes.loss import Classes
from tasks.classes.reader import ClassReader
from tasks.classes.target import ClassTarget
from tasks.objects.labels import pack_labels
from tasks.objects.loss import Objects
from tasks.objects.target import ObjectTarget
from tasks.overlapping.loss import Overlapping
from tasks.overlapping.target import OverlapTarget
from tasks.prediction import PredictedImage, Prediction
from tasks.scoring.boundary import boundary_scores
from tasks.scoring.masks import Parts, score_masks
from tasks.task import Scores

CLASSES = ClassMap(("sky", "land", "sea"), (10, 200, 255), None)
TASK = Classes(CLASSES.names)
SIZES = pytest.mark.parametrize("size", [(7, 5), (14, 10), (3, 2), (600, 300)])


def parts_of(truth: Target) -> Parts:
    """A true mask, some rows at a time."""
    return ((rows, truth.at(rows)) for rows in row_spans(truth.shape[0], 256))


def score_of(image: PredictedImage, truth: np.ndarray, **options: bool) -> Scores:
    """The scores of an image with a true mask of class indices."""
    return score_masks(TASK, image, truth.shape, parts_of(ClassTarget(truth)), **options)


def predicted(labels: np.ndarray, missing: np.ndarray | None = None, **fields: object) -> PredictedImage:
    """An image with a prediction; `fields` holds further fields of it."""
    return PredictedImage(image_job(Path("out")), labels.shape, Prediction(labels, **fields), missing=missing)


def pixels_under(size: tuple[int, int]) -> tuple:
    """The index of the pixels of 7 x 5 under the centers of those of an image of `size`."""
    sides = zip((7, 5), size, strict=True)
    return np.ix_(*[[int((place + 0.5) * side / true) for place in range(true)] for side, true in sides])


@SIZES
def test_the_predicted_pixel_under_the_center_of_each_true_one_counts(size):
    rng = np.random.default_rng(0)
    pred = rng.integers(0, 3, (7, 5), np.uint8)
    certainty = rng.random((7, 5)).astype(np.float32)
    truth = rng.choice(np.uint8([0, 1, 2, 255]), size)
    scores = score_of(predicted(pred, certainty=certainty), truth, boundary=True)
    under = pixels_under(size)
    assert scores.sums.tolist() == matrix_of(pred[under], truth)
    assert scores.entries[0]["boundary_iou"] == boundary_scores(pred[under], truth, 3).to_json()["boundary_iou"]
    whole = score_of(predicted(pred[under], certainty=certainty[under]), truth)
    assert torch.equal(scores.reliability, whole.reliability)
    assert np.array_equal(scores.areas, whole.areas)


@SIZES
def test_true_pixels_whose_center_lies_where_the_image_holds_no_data_do_not_count(size):
    rng = np.random.default_rng(0)
    pred = rng.integers(0, 3, (7, 5), np.uint8)
    missing = rng.random((7, 5)) < 0.4
    truth = rng.integers(0, 3, size, np.uint8)
    image = predicted(pred, missing, certainty=np.full((7, 5), 0.9, np.float32))
    scores = score_of(image, truth)
    under = pixels_under(size)
    assert scores.sums.tolist() == matrix_of(pred[under], np.where(missing[under], 255, truth))
    assert scores.reliability[:, 0].sum() == (~missing[under]).sum()


def test_each_class_that_overlaps_is_as_sure_as_under_the_centers_of_true_pixels():
    rng = np.random.default_rng(0)
    certainty = rng.random((2, 6, 4)).astype(np.float32)
    pred = np.where(certainty[1] > 0.5, 2, 0).astype(np.int32)
    truth = OverlapTarget(np.full((3, 2), 2, np.int32), np.full((3, 2), 3, np.int32))
    task = Overlapping(("a", "b"))
    scores = score_masks(task, predicted(pred, certainty=certainty), (3, 2), parts_of(truth))
    smaller = predicted(pred[1::2, 1::2], certainty=certainty[:, 1::2, 1::2])
    whole = score_masks(task, smaller, (3, 2), parts_of(truth))
    assert torch.equal(scores.reliability, whole.reliability)
    assert scores.reliability[:, 0].sum() == 12  # 6 pixels of 2 classes


def test_an_object_that_lies_in_several_parts_is_one():
    ids = np.zeros((600, 3), np.int32)
    ids[1:500, :2] = 7
    truth = ObjectTarget((ids > 0).astype(np.uint8), ids)
    scores = score_masks(Objects(), predicted(pack_labels(ids, ids > 0)), ids.shape, parts_of(truth))
    (entry,) = scores.entries
    assert entry.items() >= {"ap50": 1, "objects": 1, "predicted": 1, "found": 1, "split": 0, "merged": 0}.items()
    assert scores.areas is None


def test_a_true_mask_of_other_proportions_is_refused(tmp_path):
    Image.fromarray(np.zeros((4, 12), np.uint8)).save(tmp_path / "truth.png")
    job = replace(image_job(tmp_path, size=(4, 6)), truth=PageFile(tmp_path / "truth.png"))
    with pytest.raises(DataError, match=r"truth\.png: image is 4 x 6, its mask 4 x 12 .*; they differ in proportions"):
        score_labels(format_of(ClassReader(CLASSES)), TASK, job, np.zeros((4, 6), np.uint8))
