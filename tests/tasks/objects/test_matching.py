"""Objects that are matched by their overlap, and the scores that follow from the matches, by the published formulas.

Modules: tasks/objects/scores.py.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from support.objects import discs, labels_of, target_of

from tasks.classes.loss import Classes
from tasks.objects.loss import Objects
from tasks.objects.scores import SUMS, THRESHOLDS, Matches, ObjectScores, Overlaps
from unet.config import IGNORE_INDEX

ONE = np.ones((2, 8), int)
HALVES = np.repeat([[1] * 4 + [2] * 4], 2, axis=0)


def scores_of(predicted: np.ndarray, true: np.ndarray, mask: np.ndarray | None = None) -> ObjectScores:
    """The scores of one image."""
    scores = Objects().new_scores(1)
    scores.add(labels_of(predicted), target_of(true, mask), 0)
    scores.finish_image(0)
    return scores


def reference(true: np.ndarray, predicted: np.ndarray, threshold: float) -> tuple[int, int, int, float]:
    """True positives, true and predicted objects, and the matched IoU, as stardist.matching defines them."""
    true_numbers, predicted_numbers = (np.unique(labels[labels > 0]) for labels in (true, predicted))
    iou = np.zeros((len(true_numbers), len(predicted_numbers)))
    for row, number in enumerate(true_numbers):
        for column, other in enumerate(predicted_numbers):
            shared_pixels = (true == number) & (predicted == other)
            iou[row, column] = shared_pixels.sum() / ((true == number) | (predicted == other)).sum()
    smaller = min(iou.shape)
    if not smaller:
        return 0, *iou.shape, 0.0
    rows, columns = linear_sum_assignment(-(iou >= threshold).astype(float) - iou / (2 * smaller))
    matched = iou[rows, columns] >= threshold
    return int(matched.sum()), *iou.shape, float(iou[rows, columns][matched].sum())


def random_labels(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    labels = np.zeros(size, np.int64)
    for number in range(1, rng.integers(2, 8)):
        y, x = rng.integers(0, size)
        labels[y : y + rng.integers(1, 12), x : x + rng.integers(1, 12)] = number * rng.integers(1, 4)
    return labels


@pytest.mark.parametrize("seed", range(20))
def test_scores_equal_the_formulas_of_stardist(seed):
    rng = np.random.default_rng(seed)
    size = tuple(rng.integers(6, 30, 2))
    true = random_labels(rng, size)
    predicted = np.roll(true, rng.integers(0, 3), axis=0) if seed % 2 else random_labels(rng, size)
    values = scores_of(predicted, true).by_name()["object"]
    for threshold, ap in zip(THRESHOLDS, values["ap_by_iou"], strict=True):
        matched, objects, predictions, _ = reference(true, predicted, threshold)
        assert ap == pytest.approx(matched / (objects + predictions - matched), abs=1e-9)
    matched, objects, predictions, iou = reference(true, predicted, 0.5)
    assert values["f1"] == pytest.approx(2 * matched / (objects + predictions), abs=1e-9)
    assert values["panoptic_quality"] == pytest.approx(2 * iou / (objects + predictions), abs=1e-9)
    counts = {name: values[name] for name in ("objects", "predicted", "found")}
    assert counts == {"objects": objects, "predicted": predictions, "found": matched}
    assert values["precision"] == (pytest.approx(matched / predictions) if predictions else None)
    assert values["recall"] == (pytest.approx(matched / objects) if objects else None)


def test_an_object_cut_into_exact_halves_is_found_once():
    assert scores_of(HALVES, ONE).by_name()["object"]["found"] == 1
    assert scores_of(ONE, HALVES).by_name()["object"]["found"] == 1


def scores_of_two_processes() -> tuple[ObjectScores, ObjectScores, ObjectScores]:
    """The scores of four images by one process, and those of each of two processes with two of the images."""
    together, *halves = (Objects().new_scores(4) for _ in range(3))
    for index in range(4):
        true = discs((40, 40), 12, seed=index)
        for scores in (together, halves[index % 2]):
            scores.add(labels_of(np.roll(true, 1, 0)), target_of(true), index)
            scores.finish_image(index)
    return together, halves[0], halves[1]


def test_images_of_two_processes_add_up_to_the_same_whole_numbers():
    together, *halves = scores_of_two_processes()
    assert torch.equal(halves[0].sums + halves[1].sums, together.sums)
    assert torch.equal(halves[0].by_image + halves[1].by_image, together.by_image)
    assert together.sums.dtype == together.by_image.dtype == torch.int64


def test_objects_that_are_split_or_merged_are_counted():
    true = np.zeros((20, 40), int)
    true[2:10, 2:10], true[2:10, 10:18], true[12:18, 2:38] = 1, 2, 3  # of 64, 64 and 216 pixels
    predicted = np.zeros_like(true)
    predicted[2:10, 2:18], predicted[12:18, 2:20], predicted[12:18, 20:38] = 1, 2, 3
    values = scores_of(predicted, true).values
    assert values["merged"] == 2
    assert values["split"] == 1
    assert values["found"] == 1 + 1
    assert values["objects_by_size"] == [0, 3, 0, 0, 0]


@pytest.mark.parametrize(
    ("predicted", "true", "merged", "split"),
    [
        ([7, 7, 8, 8], [2, 1, 1, 3], 0, 0),
        ([2, 1, 1, 3], [7, 7, 8, 8], 0, 0),
        ([1, 1, 1], [1, 2, 3], 3, 0),
        ([1, 2, 0, 0, 0], [1, 1, 1, 1, 1], 0, 1),  # the object is larger than both predictions in it
    ],
    ids=["halves in predictions", "halves in objects", "three in one", "two small ones in a large one"],
)
def test_half_of_an_object_is_not_most_of_it(predicted, true, merged, split):
    matches = Matches.from_overlaps(Overlaps.between(np.array([predicted]), np.array([true])))
    assert matches.count_merged() == merged
    assert matches.count_split() == split


def test_counts_that_are_wrong_in_two_images_do_not_cancel():
    scores = Objects().new_scores(2)
    scores.add(labels_of([[1, 0, 2, 0]]), target_of([[1, 0, 0, 0]]), 0)
    scores.finish_image(0)
    scores.add(labels_of([[1, 0, 0, 0]]), target_of([[1, 0, 2, 3]]), 1)
    scores.finish_image(1)
    assert scores.values["count_error"] == 3 / 4  # by one and by two objects, of four
    assert [scores.record()[f"eval/{name}"] for name in ("missed", "split", "merged")] == [2, 0, 0]


def test_objects_that_were_found_are_counted_by_their_size():
    sizes = (63, 64, 255, 256, 1023, 1024, 4095, 4096)
    true = np.repeat(np.arange(1, 9), sizes)[None]
    predicted = np.where(np.isin(true, (1, 4, 8)), true, 0)
    # a prediction of a sixth of the second object overlaps it, and does not find it
    predicted[0, 63:73] = 9
    predicted[0, 382:432] = 0  # what is left of the fourth is three quarters and more
    scores = Objects().new_scores(1)
    scores.sums = torch.tensor(Matches.from_overlaps(Overlaps.between(predicted, true)).sums())
    assert scores.values["objects_by_size"] == [1, 2, 2, 2, 1]
    assert scores.values["found_by_size"] == [1, 0, 1, 0, 1]


def test_a_class_without_objects_counts_in_no_mean():
    scores = Objects(Classes(("background", "a", "b"))).new_scores(1)
    scores.add(labels_of([[1, 1, 1, 0]]), target_of([[1, 1, 1, 1]]), 0)  # an IoU of 0.75
    scores.finish_image(0)
    assert scores.values["ap"] == 6 / 10


def test_classes_match_only_themselves_and_their_counts_add_up():
    """Scores of an object of each of two classes, both of which are predicted as the first."""
    scores_of_wrong_class = Objects(Classes(("background", "a", "b"))).new_scores(1)
    ids = [[1, 1, 0, 2, 2]]
    scores_of_wrong_class.add(labels_of(ids, classes=[[1, 1, 0, 1, 1]]), target_of(ids, mask=ids), 0)
    scores_of_wrong_class.finish_image(0)
    assert [values["found"] for values in scores_of_wrong_class.by_name().values()] == [1, 0]
    assert scores_of_wrong_class.record()["eval/ap50/a"] == 0.5
    assert scores_of_wrong_class.record()["eval/ap50/b"] == 0
    values = scores_of_wrong_class.values
    assert [values[name] for name in ("objects", "predicted", "found")] == [2, 2, 1]
    assert values["objects_by_size"] == [2, 0, 0, 0, 0]
    assert values["found_by_size"] == [1, 0, 0, 0, 0]


def test_pixels_that_the_truth_ignores_are_no_prediction():
    true, predicted = np.zeros((10, 20), int), np.zeros((10, 20), int)
    true[2:6, 2:6] = predicted[2:6, 2:6] = 1
    predicted[2:6, 12:16] = 2
    mask = (true > 0).astype(np.uint8)
    mask[:, 10:] = IGNORE_INDEX
    assert scores_of(predicted, true).values["ap50"] == 0.5
    assert scores_of(predicted, true, mask).values["ap50"] == 1


def test_an_image_without_objects_has_no_score_and_is_the_worst_only_where_some_are_predicted():
    nothing = np.zeros((5, 5), int)
    scores = scores_of(nothing, nothing)
    assert scores.values["ap50"] is None
    assert scores.comparison == 0
    assert len(scores.sums) == SUMS
    assert scores.image_comparison == [1]
    assert scores_of(np.ones((5, 5), int), nothing).image_comparison == [0]
