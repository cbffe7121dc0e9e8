"""Reports of objects, from scores and labels that are written out.

Module: train_utils/reporting/objects.py.
"""

import numpy as np
import pytest
import torch
from support.reports import html_rows, markdown_rows

from data_utils.targets.objects import ObjectReader
from data_utils.visualize import GREY, RED
from tasks.matching import ObjectScores, pack_labels
from tasks.objects import ObjectTarget
from train_utils.reporting.objects import BLUE, GREEN, ObjectSection, describe_errors, mark_objects


def boxes(size: tuple[int, int], *corners: tuple[int, int, int, int]) -> np.ndarray:
    """Labels of boxes with these corners (top, left, bottom, right), numbered from 1."""
    labels = np.zeros(size, np.int64)
    for number, (top, left, bottom, right) in enumerate(corners, 1):
        labels[top:bottom, left:right] = number
    return labels


# The fourth true object is ignored.
TRUE = boxes((12, 16), (0, 0, 4, 4), (0, 5, 4, 9), (2, 9, 4, 12), (8, 0, 12, 4))
CLASSES = np.where(TRUE == 4, 255, TRUE > 0)
PREDICTED = boxes((12, 16), (8, 8, 12, 12), (1, 0, 5, 4), (2, 5, 6, 8), (6, 1, 10, 3))
BLACK = np.zeros((12, 16), np.uint8)


def lower_right_edges(labels: np.ndarray) -> np.ndarray:
    """Whether a pixel of an object differs from the one to its right or below it."""
    height, width = labels.shape
    edges = np.zeros_like(labels, bool)
    for row, column in np.argwhere(labels > 0):
        for other in ((row, column + 1), (row + 1, column)):
            edges[row, column] |= other[0] < height and other[1] < width and labels[other] != labels[row, column]
    return edges


def test_found_missed_invented_and_ignored_objects_have_their_colors():
    image = np.full((12, 16, 3), (150, 200, 250), np.uint8)  # 200 on average
    shown = mark_objects(image, pack_labels(TRUE, CLASSES), pack_labels(PREDICTED, PREDICTED > 0))
    expected = np.full((12, 16, 3), 70)
    expected[6:8, 1:3] = expected[8:12, 8:12] = BLUE  # what of the last prediction lies beside the ignored object
    expected[0:4, 5:9] = expected[2:4, 9:12] = RED
    expected[4:6, 5:8] = BLUE  # what of a prediction that overlaps too little lies beside the true object
    expected[0:4, 0:4] = GREEN  # 12 of 20 pixels
    expected[8:12, 0:4] = GREY
    expected[lower_right_edges(np.where(TRUE == 4, 0, TRUE))] = 0
    assert np.array_equal(shown, expected)


# Four true objects; of the predicted ones, one covers two of them, two share the last, and the third is missed.
ROW = boxes((8, 12), (0, 0, 4, 4), (0, 4, 4, 8), (6, 0, 8, 2), (0, 8, 4, 12))
MERGED = boxes((8, 12), (0, 0, 4, 8), (0, 8, 4, 10), (0, 10, 4, 12))


def test_errors_are_counted_in_words():
    # An IoU of one half makes one of those that are split or merged found.
    words = describe_errors(pack_labels(ROW, ROW > 0), pack_labels(MERGED, MERGED > 0))
    assert words == "errors: 2 missed, 1 split, 2 merged"


def test_ignored_objects_are_no_errors():
    labels = boxes((8, 12), (0, 0, 4, 4), (0, 4, 4, 8), (6, 4, 8, 8), (0, 8, 4, 12))
    ignored = pack_labels(labels, np.where(labels == 3, 255, labels > 0))
    assert describe_errors(ignored, pack_labels(labels, labels > 0)) == "errors"


@pytest.fixture
def section() -> ObjectSection:
    return ObjectSection(ObjectReader(classes=((1, "cell"), (2, "bubble"))))


def scores_of(true: np.ndarray, true_classes: list[int], predicted: np.ndarray, classes: list[int]) -> ObjectScores:
    """The scores of an image of true and predicted objects of these classes, cells (1) and bubbles (2)."""
    mask = torch.from_numpy(np.uint8([0, *true_classes])[true])[None]
    prediction = torch.from_numpy(pack_labels(predicted, np.array([0, *classes])[predicted]))[None]
    scores = ObjectScores.empty(("cell", "bubble"), 1, "cpu")
    scores.add(prediction, ObjectTarget(mask, torch.from_numpy(true)[None]), 0)
    return scores


@pytest.fixture
def scores() -> ObjectScores:
    """The scores of an image of three cells, of which two are found and one is invented, and of a bubble that is
    missed while another one is invented.
    """
    true = boxes((40, 40), (0, 0, 8, 8), (0, 10, 20, 30), (30, 0, 33, 3), (30, 10, 33, 13))
    predicted = boxes((40, 40), (0, 0, 8, 8), (0, 10, 20, 27), (30, 20, 33, 23), (36, 30, 39, 33))
    return scores_of(true, [1, 1, 1, 2], predicted, [1, 1, 1, 2])


def test_classes_of_which_no_object_was_found_are_unfound(section, scores):
    assert section.unfound(scores) == ["bubble"]


def test_metrics_of_objects_are_means_over_the_classes(section, scores):
    metrics = {metric.label: metric.value for metric in section.metrics(scores)}
    assert list(metrics) == ["AP@0.5", "AP@0.75", "AP@0.5:0.95", "Panoptic quality", "F1", "Count error"]
    assert metrics["AP@0.5"] == pytest.approx((2 / 4 + 0) / 2)  # two of four cells and no bubble
    assert metrics["Panoptic quality"] == pytest.approx((2 * (1 + 0.85) / 6 + 0) / 2)


def test_the_page_of_objects_has_a_row_of_scores_a_class(section, scores):
    titles, cell, bubble = html_rows(section.html(scores))[:3]
    metrics = ["AP@0.5", "AP@0.75", "AP@0.5:0.95", "PQ", "F1", "Count error"]
    assert titles == ["class", *metrics, "objects", "predicted", "found", "split", "merged"]
    assert cell[:2] == ["cell", "0.5000"]
    assert cell[-5:] == ["3", "3", "2", "0", "0"]
    assert bubble[:2] == ["bubble", "0.0000"]
    assert bubble[-5:] == ["1", "1", "0", "0", "0"]


def test_the_page_of_objects_counts_them_by_size(section, scores):
    rows = html_rows(section.html(scores))[4:]
    assert [row[:2] for row in rows] == [["below 64", "2"], ["64 to 255", "1"], ["256 to 1,023", "1"]]


def test_the_markdown_of_objects_has_classes_and_sizes(section, scores):
    rows = markdown_rows(section.markdown(scores))
    assert rows[2][0] == "cell"
    assert rows[-1] == ["256 to 1,023", "1", "1"]
    assert ["below 64", "2", "0"] in rows


def test_an_object_that_goes_on_in_ignored_pixels_is_found():
    label = pack_labels(np.array(1), np.array(1))
    truth, pred = np.full((8, 12), pack_labels(np.array(0), np.array(255))), np.full((8, 12), label)
    truth[:, :4] = label
    marked = mark_objects(np.zeros((8, 12), np.uint8), truth, pred)
    assert tuple(marked[4, 1]) == GREEN
    assert tuple(marked[4, 8]) not in (GREEN, RED, BLUE)


@pytest.mark.parametrize("box", [(), ((0, 0, 8, 8),)], ids=["nowhere", "in the prediction alone"])
def test_classes_without_any_object_are_not_unfound(section, box):
    assert section.unfound(scores_of(boxes((40, 40)), [], boxes((40, 40), *box), [2] * len(box))) == []
