"""The picture of a confusion matrix, in the report and for trackers.

Module: train_utils/reporting/matrix_picture.py.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from train_utils.reporting.matrix_picture import LEAST_COLOR, MOST_COLOR, matrix_picture

NAMES = ("<script>alert(1)</script>", 'a|b & "c"', "c: #d")


def places_of(pixels: np.ndarray, color: np.ndarray | tuple[int, int, int]) -> np.ndarray:
    """(n, 2) rows and columns of the pixels of a color, which matplotlib rounds."""
    return np.argwhere((np.abs(pixels.astype(int) - color) <= 1).all(axis=2))


@contextlib.contextmanager
def figures_noted() -> Iterator[list[Figure]]:
    """The figures that are drawn within."""
    figures: list[Figure] = []
    save = Figure.savefig

    def noted_save(figure: Figure, *arguments: object, **options: object) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", noted_save)
        yield figures


@pytest.fixture
def figures() -> Iterator[list[Figure]]:
    """The figures that are drawn in a test."""
    with figures_noted() as figures:
        yield figures


def names_beside(axis: Axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.fixture(scope="module")
def many_classes() -> tuple[np.ndarray, Figure]:
    """The picture of 150 classes in which one pixel of class 30 was found as class 70, and its figure."""
    counts = np.zeros((150, 150), np.int64)
    counts[30, 70] = 1
    with figures_noted() as figures:
        pixels = matrix_picture(counts, [str(index) for index in range(150)])
    return pixels, figures[0]


def test_one_pixel_is_all_of_its_row_in_a_matrix_of_many_classes(many_classes):
    pixels, _ = many_classes
    low = places_of(pixels, LEAST_COLOR)
    top, left = low.min(axis=0)
    right = low[low[:, 0] == top][:, 1].max()
    rows = low[low[:, 1] == left][:, 0]
    bottom = rows[np.flatnonzero(np.diff(rows) > 1)[0]]  # the color bar is below a gap
    cells = places_of(pixels[: bottom + 1], MOST_COLOR).mean(axis=0) + 0.5
    row, column = (cells - (top, left)) / (bottom + 1 - top, right + 1 - left) * 150
    assert int(row) == 30
    assert int(column) == 70


def test_a_matrix_of_many_classes_names_every_third(many_classes):
    axes, _ = many_classes[1].axes
    every_third = [str(index) for index in range(0, 150, 3)]
    assert names_beside(axes.xaxis) == every_third
    assert names_beside(axes.yaxis) == every_third
    assert axes.get_xticklabels()[0].get_rotation() == 90


def test_a_matrix_of_many_classes_has_a_color_bar_for_numbers(many_classes):
    axes, bar = many_classes[1].axes
    assert len(axes.texts) == 0
    assert bar.get_xlabel() == "share of the row's pixels"
    assert 0 < axes.get_position().y0 - bar.get_position().y1 < 0.05


class Cells(NamedTuple):
    """The picture of three classes, and (n, 2) the places of its pixels of a full, a half and no share of their row."""

    pixels: np.ndarray
    full: np.ndarray
    half: np.ndarray
    none: np.ndarray


@pytest.fixture(scope="module")
def cells() -> Cells:
    pixels = matrix_picture(np.array([[4, 0, 0], [0, 2, 2], [0, 0, 0]]), NAMES)
    middle = np.add(LEAST_COLOR, MOST_COLOR) / 2
    return Cells(pixels, *(places_of(pixels, color) for color in (MOST_COLOR, middle, LEAST_COLOR)))


def test_a_matrix_is_colored_by_shares_of_the_row(cells):
    assert cells.pixels.dtype == np.uint8
    # the numbers cover some of it: measured 0.7% and 5.4%
    assert len(cells.half) == pytest.approx(2 * len(cells.full), rel=0.03)
    assert len(cells.none) == pytest.approx(6 * len(cells.full), rel=0.08)


def test_a_matrix_has_truth_in_rows_with_predictions_in_columns(cells):
    top, left = cells.full.min(axis=0)  # the first row and column
    assert top == cells.none[:, 0].min()
    assert left == cells.none[:, 1].min()
    height, width = cells.full.max(axis=0) - (top, left) + 1
    rows = (cells.half[:, 0] - top) / height
    columns = (cells.half[:, 1] - left) / width
    assert 1 <= rows.min() < rows.max() < 2.1  # second row
    assert 1 <= columns.min() < 1.1
    assert 2.9 < columns.max() < 3.1


def test_a_matrix_has_the_names_of_its_columns_above_them(cells):
    top, left = cells.full.min(axis=0)
    width = cells.full[:, 1].max() - left + 1
    ink = (cells.pixels[:top] < 128).all(axis=2)
    assert ink[:, left : left + width].sum() > 0
    assert ink[:, left + 2 * width :].sum() > 0


@pytest.fixture
def labeled(figures, monkeypatch) -> Axes:
    """The axes of a matrix of as many classes as have numbers, one of them without pixels."""
    monkeypatch.setattr("train_utils.reporting.matrix_picture.LABELED_CLASSES", 3)
    matrix_picture(np.array([[700, 1, 0], [0, 2, 1], [0, 0, 0]]), ("a", "b", "c" * 30))
    (axes,) = figures[0].axes
    return axes


def test_a_matrix_names_its_axes(labeled):
    assert labeled.get_xlabel() == "prediction"
    assert labeled.get_ylabel() == "truth"


def test_a_matrix_names_its_classes_on_both_axes(labeled):
    names = ["a", "b", f"{'c' * 11}…{'c' * 12}"]
    assert names_beside(labeled.xaxis) == names
    assert names_beside(labeled.yaxis) == names


def test_names_of_the_largest_matrix_with_numbers_are_turned_by_half(labeled):
    assert labeled.get_xticklabels()[0].get_rotation() == 45


def test_lines_of_a_matrix_lie_between_its_cells(labeled):
    rows, columns = (lines.get_segments() for lines in labeled.collections)
    assert [segment.tolist() for segment in rows] == [[[-0.5, y], [2.5, y]] for y in (0.5, 1.5)]
    assert [segment.tolist() for segment in columns] == [[[x, -0.5], [x, 2.5]] for x in (0.5, 1.5)]


def test_a_matrix_has_the_percents_of_its_rows(labeled):
    *numbers, unit = labeled.texts
    places = {text.get_position(): text.get_text() for text in numbers}
    assert places == {(0, 0): "100", (1, 0): "0", (1, 1): "67", (2, 1): "33"}
    assert unit.get_text() == "% of the row's pixels"


@pytest.mark.parametrize(
    ("names", "degrees"), [(("a", "b", "c" * 30), 45), (("long", "a" * 8), 0), (("long", "a" * 9), 45)]
)
def test_names_that_have_no_room_side_by_side_are_turned(figures, names, degrees):
    matrix_picture(np.eye(len(names), dtype=int), names)
    assert figures[0].axes[0].get_xticklabels()[0].get_rotation() == degrees


@pytest.mark.parametrize(
    ("matrix", "share", "color"), [([[7]], 1, (255, 255, 255)), ([[1, 1], [1, 1]], 0.5, (28, 36, 48))]
)
def test_the_number_in_a_cell_contrasts_with_its_color(matrix, share, color):
    pixels = matrix_picture(np.array(matrix), NAMES[: len(matrix)])
    cells = places_of(pixels, np.add(LEAST_COLOR, share * np.subtract(MOST_COLOR, LEAST_COLOR)))
    (top, left), (bottom, right) = cells.min(axis=0), cells.max(axis=0)
    assert len(places_of(pixels[top:bottom, left:right], color)) > 20
    assert bottom - top > 190
    assert right - left > 190


@pytest.mark.parametrize(("count", "inches"), [(1, 2), (11, 5.28), (21, 8), (50, 10), (150, 12)])
def test_the_matrix_of_trackers_grows_with_its_classes_up_to_a_bound(figures, count, inches):
    names = [f"a long class name of number {index}" for index in range(count)]
    height, width, _ = matrix_picture(np.eye(count, dtype=int), names).shape
    assert figures[0].get_size_inches() == pytest.approx([inches, inches])
    assert 40 * min(count, 20) < height < 1700
    assert 40 * min(count, 20) < width < 1700


@pytest.mark.parametrize(
    "name", ["$\\frac$", "a$b$c", "\N{CJK UNIFIED IDEOGRAPH-732B}"], ids=["formula", "dollars", "Chinese"]
)
def test_a_class_name_of_any_characters_is_drawn_as_it_is(recwarn, name):
    pixels = matrix_picture(np.eye(2, dtype=int), [name, "b"])
    assert pixels.ndim == 3
    assert [str(warning.message) for warning in recwarn] == []
