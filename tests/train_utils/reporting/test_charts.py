"""The charts of a report: curves, dots of errors, and the plot of reliability.

Module: train_utils/reporting/charts.py.
"""

import base64
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from support.launches import ROOT

from train_utils.reporting.charts import SERIES, Curve, curve, error_plot, overlaid, reliability_plot

STEPS = [(float(step), float(step % 7)) for step in range(1, 1001)]


def svg_of(source: str) -> str:
    """The text of a chart, from the source of its image."""
    kind, content = source.split(",")
    assert kind == "data:image/svg+xml;base64"
    return base64.b64decode(content).decode()


def points_of(chart: Curve) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'<g id="series-\d">\s*<path d="([^"]+)"', svg_of(chart.source))
    return [[(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", line)] for line in lines]


def test_a_curve_goes_through_its_points():
    (line,) = points_of(curve("Loss", {"training": [(10, 4.0), (20, 2.0), (30, 3.0), (40, 1.0)]}))
    x, y = np.array(line).T
    np.testing.assert_allclose(np.diff(x), np.diff(x)[0], rtol=0, atol=1e-5)  # six decimals
    assert y[3] > y[0]  # down the page, where its coordinates grow
    np.testing.assert_allclose((y - y[0]) / (y[3] - y[0]), [0, 2 / 3, 1 / 3, 1], rtol=0, atol=1e-6)
    assert x.min() >= 0
    assert x.max() <= 480
    assert y.min() >= 0
    assert y.max() <= 240


def test_the_best_step_of_a_curve_is_a_dashed_line_at_its_place():
    series = {"training": [(10, 4.0), (20, 2.0), (40, 1.0)]}
    chart = curve("Loss", series, best_step=40)
    (line,) = points_of(chart)
    dashed = re.search(r'id="best-step">\s*<path d="M (\S+)', svg_of(chart.source))
    assert float(dashed[1]) == pytest.approx(line[-1][0])
    assert "best-step" not in svg_of(curve("Loss", series, best_step=41).source)


def test_a_curve_of_twice_the_points_is_the_means_of_pairs():
    (line,) = points_of(curve("Loss", {"training": [(step, (step + step // 2) % 2) for step in range(800)]}))
    assert len(line) == 400
    assert len({y for _, y in line}) == 1


def test_values_that_are_no_numbers_are_left_out_of_a_curve():
    chart = curve("Loss", {"a": [(1, math.nan), (2, 1.0), (3, math.inf)], "b": [(1, math.nan)], "c": []})
    assert [len(line) for line in points_of(chart)] == [1]
    assert "nan" not in svg_of(chart.source)
    assert chart.last == {"a": 1.0}


@pytest.mark.parametrize("series", [{"b": [(1, math.nan)]}, {"training": [(1, math.inf)]}, {}])
def test_a_curve_without_finite_values_is_none(series):
    assert curve("Loss", series) is None


def test_a_line_keeps_its_color_beside_one_without_values():
    nothing = [(1, math.nan), (2, math.inf)]
    source = overlaid([(2, [(1, 3.0), (2, 1.0)]), (0, nothing), (4, [(1, 2.0), (2, math.inf), (3, 1.0)])])
    colors = re.findall(r'"series-\d">\s*<path [^>]*stroke: (#\w+)', svg_of(source))
    assert colors == [SERIES[2], SERIES[4]]


def corners(svg: str, name: str) -> np.ndarray:
    """(n, 2) the corners (x, y) of a line of a reliability plot."""
    path = re.search(rf'id="{name}">\s*<path d="([^"]+)"', svg)[1]
    return np.array(re.findall(r"[ML] (\S+) (\S+)", path), float)


def test_a_reliability_plot_shows_the_share_of_right_pixels_over_their_confidence():
    points = [{"confidence": 0.2, "accuracy": 0.9}, {"confidence": 0.8, "accuracy": 0.1}]
    svg = svg_of(reliability_plot(points))
    (left, bottom), (right, top) = corners(svg, "calibrated")
    expected = [
        [left + 0.2 * (right - left), bottom + 0.9 * (top - bottom)],
        [left + 0.8 * (right - left), bottom + 0.1 * (top - bottom)],
    ]
    np.testing.assert_allclose(corners(svg, "series-0"), expected, rtol=0, atol=1e-4)
    assert right > left
    assert bottom > top


def dot_rows(svg: str) -> list[list[tuple[float, float]]]:
    """The places (x, y) of the dots of each row of an error plot."""
    rows = svg.split('id="errors-')[1:]
    return [[(float(x), float(y)) for x, y in re.findall(r'<use [^>]*x="(\S+)" y="(\S+)"', row)] for row in rows]


@pytest.fixture(scope="module")
def two_rows() -> str:
    """An error plot of two rows with a median of 10 each."""
    return svg_of(error_plot({"a": np.array([1.0, 10.0, 100.0]), "b": np.array([10.0, 4.0, 40.0])}, "px"))


def test_dots_of_errors_lie_on_a_logarithmic_axis_in_a_row_from_the_top(two_rows):
    first_row, second_row = dot_rows(two_rows)
    (one, height), (ten, _), (hundred, _) = first_row[:3]
    assert ten - one == pytest.approx(hundred - ten)
    assert ten == pytest.approx(second_row[0][0])
    assert height < second_row[0][1]
    assert re.findall(r">(\d+)</text>", two_rows) == ["1", "2", "5", "10", "20", "50", "100"]


def test_a_bar_marks_the_median_of_the_errors(two_rows):
    median = dot_rows(two_rows)[0][1][0]
    heights = [row[0][1] for row in dot_rows(two_rows)]
    bars = re.findall(r'<path d="M (\S+) (\S+) \s*L (\S+) (\S+) \s*"[^>]*stroke: #e5601a', two_rows)
    assert [(float(bar[0]), float(bar[2])) for bar in bars] == [pytest.approx((median, median))] * 2
    assert [(float(bar[1]) + float(bar[3])) / 2 for bar in bars] == pytest.approx(heights, abs=1e-4)


def test_rows_of_errors_are_named_from_the_top_by_text():
    errors = {"$n$ose": np.array([1.0, 2.0]), "a" * 30: np.array([]), "Ear": np.array([5.0])}
    svg = svg_of(error_plot(errors, "mm"))
    assert f">{'a' * 11}…{'a' * 12}<" in svg
    assert svg.index(">$n$ose<") < svg.index("…") < svg.index(">Ear<")
    assert all(f"errors-{row}" in svg for row in range(3))


def test_a_plot_of_no_errors_is_none():
    assert error_plot({"nose": np.array([])}, "mm") is None


def test_an_error_of_0_is_a_dot_on_the_logarithmic_axis():
    svg = svg_of(error_plot({"nose": np.array([0.0, 2.0, 50.0])}, "mm"))
    dots = re.findall(r'<use [^>]*x="([-\d.]+)"', svg.partition("errors-0")[2])
    assert len(dots) == 3
    assert min(map(float, dots)) > 0


DRAW = """
import numpy, sys
from train_utils.reporting.charts import curve
from train_utils.reporting.matrix_picture import matrix_picture
picture = matrix_picture(numpy.eye(2), ["a$", "b_"])
sys.stdout.buffer.write(curve("Loss", {"train": [(0, 1), (5, 2)]}).source.encode() + picture.tobytes())
"""
USER_STYLE = "text.usetex: True\nsvg.fonttype: path\nfont.family: Nothing\nsavefig.dpi: 30\nlines.linewidth: 9\n"


def test_no_backend_and_no_style_of_the_user_changes_a_figure(tmp_path):
    def drawn(**variables: str) -> bytes:
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
        return subprocess.run(
            [sys.executable, "-c", DRAW], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, check=True
        ).stdout

    plain = drawn()
    (tmp_path / "matplotlibrc").write_text(USER_STYLE)
    assert drawn(MPLBACKEND="module://matplotlib_inline.backend_inline") == plain
