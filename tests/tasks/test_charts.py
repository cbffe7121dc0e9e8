"""The charts of a report: curves, the plot of reliability, and the confusion matrix.

Module: tasks/charts.py.
"""

import base64
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.launches import ROOT

from tasks.charts import SERIES, Line, line_chart, matrix_picture, reliability_plot


def svg_of(source: str) -> str:
    """The text of a chart, from the source of its image."""
    kind, content = source.split(",")
    assert kind == "data:image/svg+xml;base64"
    return base64.b64decode(content).decode()


def points_of(source: str) -> list[np.ndarray]:
    """(n, 2) the points (x, y) of each line of a chart, in the units of the picture."""
    lines = re.findall(r'<g id="series-\d+">\s*<path d="([^"]+)"', svg_of(source))
    return [np.array(re.findall(r"[ML] (\S+) (\S+)", line), float) for line in lines]


def test_a_curve_goes_through_its_points_and_its_legend_has_the_last_one():
    source = line_chart([Line([(10, 4.0), (20, 2.0), (30, 3.0), (40, 1.0)], 0, "training")])
    (line,) = points_of(source)
    x, y = line.T
    np.testing.assert_allclose(np.diff(x), np.diff(x)[0], rtol=0, atol=1e-5)  # six decimals
    np.testing.assert_allclose((y - y[0]) / (y[3] - y[0]), [0, 2 / 3, 1 / 3, 1], rtol=0, atol=1e-6)
    assert y[3] > y[0]  # down the page, where its coordinates grow
    assert ">training 1<" in svg_of(source)


def test_the_best_step_of_a_curve_is_a_dashed_line_at_its_place():
    line = Line([(10, 4.0), (20, 2.0), (40, 1.0)], 0, "training")
    source = line_chart([line], best_step=40)
    dashed = re.search(r'id="best-step">\s*<path d="M (\S+)', svg_of(source))
    assert float(dashed[1]) == pytest.approx(points_of(source)[0][-1, 0])
    assert "best-step" not in svg_of(line_chart([line], best_step=41))


def test_a_curve_of_twice_the_points_is_the_means_of_pairs():
    (line,) = points_of(line_chart([Line([(step, (step + step // 2) % 2) for step in range(800)], 0)]))
    assert len(line) == 400
    assert len(set(line[:, 1])) == 1


def test_values_that_are_no_numbers_are_left_out_and_a_line_keeps_its_color():
    nothing = [(1, math.nan), (2, math.inf)]
    source = line_chart([Line([(1, 3.0), (2, 1.0)], 2), Line(nothing, 0), Line([(1, 2.0), (2, math.inf), (3, 1.0)], 4)])
    assert [len(line) for line in points_of(source)] == [2, 2]
    colors = re.findall(r'"series-\d">\s*<path [^>]*stroke: (#\w+)', svg_of(source))
    assert colors == [SERIES[2], SERIES[4]]
    assert line_chart([Line(nothing, 0), Line([], 1)]) is None


def corners(svg: str, name: str) -> np.ndarray:
    """(n, 2) the corners (x, y) of a line of a reliability plot."""
    path = re.search(rf'id="{name}">\s*<path d="([^"]+)"', svg)[1]
    return np.array(re.findall(r"[ML] (\S+) (\S+)", path), float)


def test_a_reliability_plot_shows_the_share_of_right_pixels_over_their_confidence():
    points = [{"confidence": 0.2, "accuracy": 0.9}, {"confidence": 0.8, "accuracy": 0.1}]
    svg = svg_of(reliability_plot(points))
    first, last = corners(svg, "calibrated")
    expected = [first + (last - first) * shares for shares in ((0.2, 0.9), (0.8, 0.1))]
    np.testing.assert_allclose(corners(svg, "series-0"), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("count", "interval", "numbers"), [(3, 1, ["99.9", "0.1", "66.7", "33.3"]), (150, 3, [])])
def test_a_matrix_has_percents_of_its_rows_and_as_many_names_as_fit(monkeypatch, count, interval, numbers):
    figures: list[Figure] = []
    save = Figure.savefig

    def noted_save(figure: Figure, *arguments: object, **options: object) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", noted_save)
    matrix = np.zeros((count, count), int)
    matrix[:3, :3] = [[700, 1, 0], [0, 2, 1], [0, 0, 0]]
    matrix_picture(matrix, [f"class {index}" for index in range(count)])
    (axes,) = figures[0].axes
    names = [f"class {index}" for index in range(0, count, interval)]
    for axis in (axes.xaxis, axes.yaxis):
        assert [label.get_text() for label in axis.get_ticklabels()] == names
    assert [text.get_text() for text in axes.texts] == numbers


@pytest.mark.parametrize("name", ["$\\frac$", "\N{CJK UNIFIED IDEOGRAPH-732B}"], ids=["formula", "Chinese"])
def test_a_class_name_of_any_characters_is_drawn_as_it_is(recwarn, name):
    pixels = matrix_picture(np.eye(2, dtype=int), [name, "b"])
    assert pixels.ndim == 3
    assert [str(warning.message) for warning in recwarn] == []


DRAW = """
import sys
from tasks.charts import Line, line_chart
sys.stdout.write(line_chart([Line([(0, 1), (5, 2)], 0, "train")]))
"""
USER_STYLE = "text.usetex: True\nsvg.fonttype: path\nfont.family: Nothing\nsavefig.dpi: 30\nlines.linewidth: 9\n"


def test_no_backend_and_no_style_of_the_user_changes_a_figure(tmp_path):
    (tmp_path / "matplotlibrc").write_text(USER_STYLE)
    variables = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    result = subprocess.run(
        [sys.executable, "-c", DRAW], cwd=tmp_path, env=os.environ | variables, stdout=subprocess.PIPE, check=True
    )
    assert result.stdout.decode() == line_chart([Line([(0, 1), (5, 2)], 0, "train")])
