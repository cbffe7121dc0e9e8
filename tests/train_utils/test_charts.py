"""The charts of a report: curves, and dots of errors.

Module: train_utils/reporting/charts.py.
"""

import re

import numpy as np
import pytest

from train_utils.reporting import charts
from train_utils.reporting.charts import MAX_POINTS, curve, error_plot


def series_path(svg: str) -> str:
    """The path of the first series of a line chart."""
    (path,) = re.findall(r'id="loss-series-0">\s*<path d="(.*?)"', svg, flags=re.DOTALL)
    return path


def test_a_long_curve_is_thinned_to_the_means_of_runs_of_its_points(monkeypatch):
    monkeypatch.setattr(charts, "MAX_POINTS", 3)
    points = np.array([[0, 1], [1, 3], [2, 5], [3, 7], [4, 9], [5, 11]], float)
    assert charts.thinned(points).tolist() == [[0.5, 2], [2.5, 6], [4.5, 10]]


def test_a_short_curve_keeps_its_points(monkeypatch):
    monkeypatch.setattr(charts, "MAX_POINTS", 3)
    points = np.array([[0, 1], [1, 3], [2, 5]], float)
    assert charts.thinned(points).tolist() == points.tolist()


STEPS = [(float(step), float(step % 7)) for step in range(1, 1001)]


def test_a_curve_has_no_more_points_than_a_chart_can_show():
    assert series_path(curve("Loss", {"training": STEPS}).svg).count("L") == MAX_POINTS - 1


def test_the_last_value_of_a_curve_is_its_last_finite_one():
    series = {"training": STEPS, "validation": [(5.0, 0.5), (900.0, float("nan"))], "none": []}
    assert curve("Loss", series).last == {"training": 1000 % 7, "validation": 0.5}


def test_a_series_without_finite_values_is_not_drawn():
    plot = curve("Loss", {"training": STEPS, "validation": [(3, float("nan"))]})
    assert plot.last.keys() == {"training"}
    assert "loss-series-0" in plot.svg
    assert "loss-series-1" not in plot.svg


def test_a_curve_without_finite_values_is_none():
    assert curve("Loss", {"training": [(1, float("inf"))]}) is None


def test_a_curve_is_labeled_with_its_escaped_title():
    plot = curve("A & B", {"a": [(1, 1.0), (2, 2.0)]})
    assert plot.title == "A & B"
    assert 'aria-label="A &amp; B"' in plot.svg


@pytest.mark.parametrize(("best_step", "lines"), [(700, 1), (1000, 1), (1001, 0)])
def test_the_best_step_is_a_line_within_the_steps_of_the_curve(best_step, lines):
    assert curve("Loss", {"training": STEPS}, best_step).svg.count('id="loss-best-step"') == lines


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("abcdefghijklmnopqrstuvwx", "abcdefghijklmnopqrstuvwx"),
        ("abcdefghijklmnopqrstuvwxy", "abcdefghijk…nopqrstuvwxy"),
        ("abcdefghijklmnopqrstuvwxyz", "abcdefghijk…opqrstuvwxyz"),
    ],
    ids=["24 characters", "25", "26"],
)
def test_a_class_name_of_more_than_24_characters_keeps_its_two_ends(name, shown):
    assert charts.shortened(name) == shown


def dot_rows(svg: str) -> list[list[tuple[float, float]]]:
    """The places (x, y) of the dots of each row of an error plot."""
    rows = svg.split('id="errors-errors-')[1:]
    return [[(float(x), float(y)) for x, y in re.findall(r'<use [^>]*x="(\S+)" y="(\S+)"', row)] for row in rows]


@pytest.fixture(scope="module")
def two_rows() -> str:
    """An error plot of two rows with a median of 10 each."""
    return error_plot("Errors", {"a": np.array([1.0, 10.0, 100.0]), "b": np.array([10.0, 4.0, 40.0])}, "px")


def test_dots_of_errors_lie_on_a_logarithmic_axis(two_rows):
    first_row, second_row = dot_rows(two_rows)
    (one, _), (ten, _), (hundred, _) = first_row[:3]
    assert ten - one == pytest.approx(hundred - ten)
    assert ten == pytest.approx(second_row[0][0])
    assert re.findall(r">(\d+)</text>", two_rows) == ["1", "2", "5", "10", "20", "50", "100"]


def test_dots_of_errors_of_a_name_lie_in_a_row_from_the_top(two_rows):
    first_row, second_row = dot_rows(two_rows)
    heights = [y for _, y in first_row[:3]]
    assert heights[0] == heights[1] == heights[2] < second_row[0][1]


def test_a_bar_marks_the_median_of_the_errors(two_rows):
    median = dot_rows(two_rows)[0][1][0]
    heights = [row[0][1] for row in dot_rows(two_rows)]
    bars = re.findall(r'<path d="M (\S+) (\S+) \s*L (\S+) (\S+) \s*"[^>]*stroke: var\(--series-1\)', two_rows)
    assert [(float(bar[0]), float(bar[2])) for bar in bars] == [pytest.approx((median, median))] * 2
    assert [(float(bar[1]) + float(bar[3])) / 2 for bar in bars] == pytest.approx(heights, abs=1e-4)


def test_a_plot_of_few_rows_of_errors_has_a_least_height(two_rows):
    assert 'viewBox="0 0 480 240"' in two_rows


def test_a_plot_of_many_rows_of_errors_grows_with_their_number():
    svg = error_plot("Errors", {str(number): np.array([1.0]) for number in range(30)}, "px")
    assert f'viewBox="0 0 480 {18 * 32}"' in svg
    lowest = re.search(r'<use [^>]*y="(\S+)"', svg.partition('id="errors-errors-29')[2])
    assert 480 < float(lowest[1]) < 18 * 32  # the rows fill the height


def test_rows_of_errors_are_named_from_the_top_by_text():
    errors = {"$n$ose": np.array([1.0, 2.0]), "a" * 30: np.array([]), "Ear": np.array([5.0])}
    svg = error_plot("Errors", errors, "mm")
    assert f">{'a' * 11}…{'a' * 12}<" in svg
    assert svg.index(">$n$ose<") < svg.index("…") < svg.index(">Ear<")
    assert all(f"errors-errors-{row}" in svg for row in range(3))


def test_a_plot_of_errors_names_their_unit():
    assert "error in mm" in error_plot("Errors", {"nose": np.array([1.0])}, "mm")


def test_a_plot_of_no_errors_is_none():
    assert error_plot("Errors", {"nose": np.array([])}, "mm") is None


def test_an_error_of_0_is_a_dot_on_the_logarithmic_axis():
    svg = error_plot("Errors", {"nose": np.array([0.0, 2.0, 50.0])}, "mm")
    dots = re.findall(r'<use [^>]*x="([-\d.]+)"', svg.partition("errors-errors-0")[2])
    assert len(dots) == 3
    assert min(map(float, dots)) > 0
