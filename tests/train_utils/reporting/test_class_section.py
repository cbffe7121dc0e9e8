"""Reports of classes: scores, confusions and pictures.

Modules: train_utils/reporting/classes.py, tasks/confusion.py.
"""

import numpy as np
import pytest
import torch
from support.reports import (
    class_scores,
    class_section,
    html_rows,
    markdown_rows,
    noise,
    text_line,
)

from data_utils.class_map import ClassMap
from data_utils.targets.classes import ClassReader
from data_utils.visualize import outlined_overlay
from tasks.classes import ClassScores
from tasks.partly_labeled import PartlyLabeledClasses, PartlyLabeledTarget
from train_utils.reporting.classes import ClassSection, confusions

NAMES = [f"class {index}" for index in range(30)]
ROWS = {
    "class 0": [f"{50 / 55:.4f}", f"{100 / 105:.4f}", "1.0000", f"{50 / 55:.4f}", "55"],
    "class 3": ["1.0000", "1.0000", "1.0000", "1.0000", "1"],
    "class 7": ["0.0000", "0.0000", "0.0000", "n/a", "0"],
}


@pytest.fixture
def few_of_many() -> ClassScores:
    """Scores of thirty classes of which three occur: one has a single pixel, one is predicted and in no mask."""
    matrix = torch.zeros(30, 30, dtype=torch.int64)
    matrix[0, 0] = 50
    matrix[3, 3] = 1
    matrix[0, 7] = 5
    return class_scores(NAMES, matrix)


def test_the_page_counts_the_classes_that_are_folded_away(few_of_many):
    text = text_line(class_section(NAMES).html(few_of_many))
    assert "27 classes occur neither in the masks nor in the predictions" in text
    assert "class 1, class 2, class 4, class 5, class 6, class 8, " in text


def test_the_page_has_rows_of_the_classes_that_occur(few_of_many):
    rows = html_rows(class_section(NAMES).html(few_of_many))
    assert {row[0]: row[1:] for row in rows if row[0] in NAMES and len(row) == 6} == ROWS


def test_the_matrix_of_the_page_has_percents_of_the_classes_that_occur(few_of_many):
    text = text_line(class_section(NAMES).html(few_of_many))
    assert " 90.9 0.0 9.1 " in text
    assert " 0.0 100.0 0.0 " in text  # a single pixel is all of its row
    assert " class 7 0.0 0.0 0.0 " in text  # no mask holds it


def test_the_markdown_has_rows_of_the_classes_that_occur(few_of_many):
    markdown = class_section(NAMES).markdown(few_of_many)
    rows = markdown_rows(markdown)
    assert {row[0]: row[1:] for row in rows if row[0] in NAMES} == ROWS
    assert "27 classes occur neither" in markdown


def test_the_picture_of_a_large_matrix_has_the_classes_that_occur(monkeypatch):
    matrices = []

    def picture_of(counts: np.ndarray, names: list[str]) -> np.ndarray:
        matrices.append((counts.diagonal().tolist(), names))
        return noise(2, 2)

    monkeypatch.setattr("train_utils.reporting.classes.matrix_picture", picture_of)
    names = [f"c{index}" for index in range(60)]
    matrix = torch.diag(torch.arange(60) * (torch.arange(60) % 2))
    class_section(names).html(class_scores(names, matrix))
    assert matrices == [([*range(1, 60, 2)], names[1::2])]


UNSCORED = "No validation image is labeled for a, c: these classes cannot be scored."
COUNTED = "It counts the images that are labeled for all classes."
PARTLY_LABELED = PartlyLabeledClasses(("a", "b", "c"), flags=torch.tensor([[1, 1, 1], [0, 1, 0]]).bool())


def partly_labeled_scores(*label_sets: int, predicted: int = 1) -> ClassScores:
    """Scores of images of the second class that are labeled for all classes (0) or for it alone (1)."""
    scores = PARTLY_LABELED.new_scores(2)
    mask = torch.ones(1, 2, 2, dtype=torch.int64)
    prediction = torch.full_like(mask, predicted)
    for number, label_set in enumerate(label_sets):
        scores.add(prediction, PartlyLabeledTarget(mask, torch.tensor([label_set])), number)
    return scores


def test_the_page_of_partly_labeled_images_says_what_they_are_labeled_for():
    html = class_section(PARTLY_LABELED.names).html(partly_labeled_scores(1))
    assert "Each class is scored on the images that are labeled for it." in html
    assert UNSCORED in html
    assert "No validation image is labeled for all classes." in html
    assert COUNTED not in html


def test_an_image_that_is_labeled_for_all_classes_makes_a_matrix():
    section = class_section(PARTLY_LABELED.names)
    scores = partly_labeled_scores(1, 0)
    assert COUNTED in section.html(scores)
    assert "No validation image" not in section.html(scores) + section.markdown(scores)


def test_the_eight_most_frequent_confusions_are_listed():
    assert confusions(np.arange(25).reshape(5, 5), [f"c{index}" for index in range(5)]) == [
        ("c4", "c3", 23),
        ("c4", "c2", 22),
        ("c4", "c1", 21),
        ("c4", "c0", 20),
        ("c3", "c4", 19),
        ("c3", "c2", 17),
        ("c3", "c1", 16),
        ("c3", "c0", 15),
    ]


COLORS = ((0, 0, 0), (255, 128, 0), (0, 90, 200))
IMAGE = np.full((4, 6), 100, np.uint8)
TRUTH = np.uint8([[0, 0, 0, 1, 1, 1]] * 4)
PREDICTION = np.uint8([[2] * 6] * 2 + [[0] * 6] * 2)


@pytest.fixture
def painted() -> ClassSection:
    """The section of classes whose masks are colors."""
    return ClassSection(ClassReader(ClassMap(("a", "b", "c"), COLORS, None)))


def test_views_of_classes_have_the_colors_of_the_masks(painted):
    views = painted.views(IMAGE, TRUTH, PREDICTION)
    colors = np.array(COLORS, np.uint8)
    np.testing.assert_array_equal(views["truth"], outlined_overlay(IMAGE, TRUTH, colors))
    np.testing.assert_array_equal(views["prediction"], outlined_overlay(IMAGE, PREDICTION, colors))


def test_rows_of_the_matrix_for_trackers_are_the_truth(monkeypatch):
    monkeypatch.setattr("train_utils.reporting.classes.matrix_picture", lambda matrix, names: (matrix.tolist(), names))
    scores = class_scores("ab", torch.tensor([[6, 2], [1, 4]]))
    assert class_section("ab").render_pictures(scores) == {"eval/confusion_matrix": ([[6, 2], [1, 4]], ("a", "b"))}


def test_only_classes_that_masks_hold_count_as_not_found():
    matrix = torch.tensor([[5, 1, 1, 0], [2, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 4]])
    assert class_section("abcd").unfound(class_scores("abcd", matrix)) == ["b"]


def test_errors_of_classes_are_red_beside_grey_pixels(painted):
    truth = TRUTH.copy()
    truth[0, 0] = 255
    truth[0, 2:] = 2
    truth[3, 2:] = 2  # where the first class was predicted
    errors = painted.views(IMAGE, truth, PREDICTION)["errors"].astype(int)
    ignored, wrong, right = errors[0, :3]
    assert np.ptp(ignored) == 0
    assert wrong[0] > wrong[1] + 100
    assert np.ptp(right) == 0
    assert (errors[3, 2:] == wrong).all()
