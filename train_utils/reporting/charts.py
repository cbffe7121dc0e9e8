"""Curves and plots for pages, drawn by matplotlib: SVG as the source of an image."""

import base64
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.redact import printable, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# size of a curve, in points; the page scales it
WIDTH = 480
HEIGHT = 240
ROW_HEIGHT = 18  # points of a landmark's row in a plot of errors
LEAST_ERROR = 1e-3  # smaller ones are drawn at the left edge
ERROR_TICKS = (1, 2, 5)  # the ticks in each power of ten
MAX_POINTS = 400  # points of a line; more cannot be told apart
# colors that can be told apart on a light and on a dark page
TEXT = "#7b8594"
GRID = "#7b859455"
SERIES = ("#3f7ff5", "#e5601a", "#1ca37f", "#a05fe6", "#d6458a", "#808b99")
CURVE_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "unet-accelerate",  # the same file for the same run
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    "font.size": 12,
    "text.color": TEXT,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "axes.autolimit_mode": "round_numbers",
    "axes.xmargin": 0,
    "axes.ymargin": 0,
    "axes.formatter.useoffset": False,
    "path.simplify": False,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.spines.bottom": False,
    "xtick.bottom": False,
    "ytick.left": False,
}

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """A line chart for a page: the source of its image, and each series' last value by label."""

    title: str
    source: str
    last: dict[str, float]


def curve(title: str, series: dict[str, Points], best_step: int | None = None) -> Curve | None:
    """A chart of {label: [(step, value), ...]}, at most two series; None if no series has a finite value.

    A dashed line marks `best_step`, if it is given.
    """
    lines = {}
    last = {}
    for label, points in series.items():
        line = _finite(points)
        if len(line):
            lines[label] = line
            last[label] = float(line[-1, 1])
    if not lines:
        return None
    return Curve(title, _line_chart(list(enumerate(lines.values())), best_step), last)


def overlaid(lines: Sequence[tuple[int, Points]]) -> str | None:
    """A chart of many lines, each with the number of its color in SERIES; None if no line has a finite value."""
    finite_lines = []
    for color, points in lines:
        line = _finite(points)
        if len(line):
            finite_lines.append((color, line))
    return _line_chart(finite_lines, None) if finite_lines else None


def _finite(points: Points) -> np.ndarray:
    """The points with a finite value, (n, 2): steps and values."""
    return np.array([point for point in points if math.isfinite(point[1])], dtype=float).reshape(-1, 2)


def _line_chart(lines: Sequence[tuple[int, np.ndarray]], best_step: int | None) -> str:
    """A chart of lines (n, 2), each with the number of its color."""
    with _styled_figure() as figure:
        axes = figure.add_subplot()
        for number, (color, line) in enumerate(lines):
            steps, values = thin_points(line).T
            (curve,) = axes.plot(steps, values, color=SERIES[color], linewidth=2, clip_on=False)
            curve.set(marker="o", markevery=[-1], gid=f"series-{number}")
        last_step = max(line[-1, 0] for _, line in lines)
        axes.set_xlim(0, last_step)
        axes.set_xlabel("step", color=TEXT, fontsize=11)
        if best_step is not None and best_step <= last_step:
            axes.axvline(best_step, color=TEXT, linewidth=1, linestyle=(0, (4, 4)), gid="best-step")
        axes.locator_params(axis="y", nbins=5, steps=[1, 2, 2.5, 5, 10])
        axes.locator_params(axis="x", nbins=5, integer=True)
        for grid_line in axes.get_ygridlines():
            grid_line.set_clip_on(False)
        return _svg(figure)


def reliability_plot(curve_points: Sequence[Mapping[str, float]]) -> str:
    """A plot of the share of right pixels over the confidence of each bin; on the dashed line both are equal.

    Args:
        curve_points: as `tasks.calibration.reliability_curve` gives them.
    """
    confidence = [point["confidence"] for point in curve_points]
    accuracy = [point["accuracy"] for point in curve_points]
    with _styled_figure() as figure:
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=TEXT, linewidth=1, linestyle=(0, (4, 4)), gid="calibrated")
        axes.plot(confidence, accuracy, color=SERIES[0], linewidth=2, marker="o", clip_on=False, gid="series-0")
        axes.set_xlabel("confidence", color=TEXT, fontsize=11)
        axes.set_ylabel("share of right pixels", color=TEXT, fontsize=11)
        return _svg(figure)


def error_plot(errors: dict[str, np.ndarray], unit: str) -> str | None:
    """A plot with a row for each name: errors as dots on a logarithmic axis, a bar at the median."""
    from matplotlib.ticker import LogLocator, NullFormatter

    if not any(len(values) for values in errors.values()):
        return None
    height = max(HEIGHT, ROW_HEIGHT * (2 + len(errors)))
    with _styled_figure(height, {"axes.grid.axis": "x", "axes.autolimit_mode": "data"}) as figure:
        axes = figure.add_subplot()
        for row, values in enumerate(errors.values()):
            positions = np.maximum(values, LEAST_ERROR)
            axes.plot(positions, np.full(len(positions), row), ".", color=SERIES[0], alpha=0.5, gid=f"errors-{row}")
            if len(positions):
                axes.plot([np.median(positions)] * 2, [row - 0.35, row + 0.35], color=SERIES[1], linewidth=2)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=ERROR_TICKS))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_yticks(range(len(errors)), [shorten(printable(name)) for name in errors], parse_math=False)
        axes.set_ylim(len(errors) - 0.5, -0.5)
        axes.set_xlabel(f"error in {unit}", color=TEXT, fontsize=11)
        return _svg(figure)


@contextmanager
def own_style(style: Mapping[Any, Any] | None = None) -> Iterator[type["Figure"]]:
    """The class of matplotlib's figures, in a context that no variable or matplotlibrc of the user has changed.

    Args:
        style: settings that differ from matplotlib's own.
    """
    os.environ["MPLBACKEND"] = "agg"  # a notebook names one that may not be installed: the import would fail
    import matplotlib  # it is imported here: it takes a quarter of a second, and only reports and trackers need it
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style or {})
        yield Figure


@contextmanager
def _styled_figure(height: int = HEIGHT, style: Mapping[str, str] | None = None) -> Iterator["Figure"]:
    """A new figure of `height` points, in a context with the style of the page's plots.

    Args:
        style: settings of matplotlib in which a plot differs from the others.
    """
    with own_style(CURVE_STYLE | dict(style or {})) as figure_class:
        yield figure_class(figsize=(WIDTH / 72, height / 72), layout="constrained")


def thin_points(points: np.ndarray) -> np.ndarray:
    """(n, 2) points as at most MAX_POINTS: the means of runs of nearly equal length."""
    if len(points) <= MAX_POINTS:
        return points
    return np.stack([run.mean(axis=0) for run in np.array_split(points, MAX_POINTS)])


def _svg(figure: "Figure") -> str:
    """A figure as the source of an image."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue().encode()).decode()}"
