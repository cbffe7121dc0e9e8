"""The picture of a confusion matrix, in the report and for trackers.

Module: train_utils/reporting/matrix_picture.py.
"""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from train_utils.reporting.matrix_picture import matrix_picture


def axes_of(matrix: np.ndarray, names: list[str]) -> Axes:
    """The axes in which a matrix is drawn."""
    figures: list[Figure] = []
    save = Figure.savefig

    def noted_save(figure: Figure, *arguments: object, **options: object) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", noted_save)
        matrix_picture(matrix, names)
    return figures[0].axes[0]


def names_beside(axis: Axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_matrix_of_many_classes_names_every_third_and_has_no_numbers():
    axes = axes_of(np.eye(150, dtype=int), [str(index) for index in range(150)])
    every_third = [str(index) for index in range(0, 150, 3)]
    assert names_beside(axes.xaxis) == every_third
    assert names_beside(axes.yaxis) == every_third
    assert len(axes.texts) == 0


def test_a_matrix_has_the_names_of_its_classes_and_the_percents_of_its_rows():
    axes = axes_of(np.array([[700, 1, 0], [0, 2, 1], [0, 0, 0]]), ["a", "b", "c" * 30])
    names = ["a", "b", f"{'c' * 11}…{'c' * 12}"]
    assert names_beside(axes.xaxis) == names
    assert names_beside(axes.yaxis) == names
    *numbers, _ = axes.texts
    places = {text.get_position(): text.get_text() for text in numbers}
    assert places == {(0, 0): "100", (1, 0): "0", (1, 1): "67", (2, 1): "33"}


@pytest.mark.parametrize("name", ["$\\frac$", "\N{CJK UNIFIED IDEOGRAPH-732B}"], ids=["formula", "Chinese"])
def test_a_class_name_of_any_characters_is_drawn_as_it_is(recwarn, name):
    pixels = matrix_picture(np.eye(2, dtype=int), [name, "b"])
    assert pixels.ndim == 3
    assert [str(warning.message) for warning in recwarn] == []
