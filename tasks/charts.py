"""Curves and plots for pages, drawn by matplotlib: SVG as the source of an image, and the confusion matrix."""

import base64
import io
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from runtime.redact import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# size of a curve, in points; the page scales it
WIDTH = 480
HEIGHT = 240
MAX_POINTS = 400  # points of a line; more cannot be told apart
# colors that can be told apart on a light and on a dark page
TEXT = "#7b8594"
GRID = "#7b859455"
SERIES = ("#3f7ff5", "#e5601a", "#1ca37f", "#a05fe6", "#d6458a", "#808b99")
DASHED: dict[str, Any] = {"color": TEXT, "linewidth": 1, "linestyle": (0, (4, 4))}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "unet-accelerate",  # the same file for the same run
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    "font.size": 12,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "axes.formatter.useoffset": False,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.spines.bottom": False,
    "xtick.bottom": False,
    "ytick.left": False,
    "legend.frameon": False,
    "path.simplify": False,
    "lines.linewidth": 2,
}
# the confusion matrix
LABELED_CLASSES = 20  # a larger one has no numbers
CELL = 0.55  # inches of a cell
LARGEST_SIDE = 12  # inches; the cells of a larger one are smaller
NAME_PITCH = 0.2  # inches between two names
DARK_CELL_SHARE = 0.55  # from this share on, text in a cell is white


class Line(NamedTuple):
    """A line of a chart.

    Args:
        points: (step, value) pairs.
        color: its number in SERIES.
        label: its name in the legend, before its last value; a line without one is not in the legend.
    """

    points: Sequence[tuple[float, float]]
    color: int
    label: str = ""


def line_chart(lines: Sequence[Line], best_step: int | None = None) -> str | None:
    """A chart of lines over the steps; None if none of them has a finite value.

    A dashed line marks `best_step`, if it is given.
    """
    finite_lines = []
    for line in lines:
        finite_points = [point for point in line.points if math.isfinite(point[1])]
        if finite_points:
            finite_lines.append(line._replace(points=finite_points))
    if not finite_lines:
        return None
    last_step = max(line.points[-1][0] for line in finite_lines)
    with _plot() as axes:
        for number, (points, color, label) in enumerate(finite_lines):
            steps, values = thin_points(np.array(points, float)).T
            (drawn,) = axes.plot(steps, values, color=SERIES[color], marker="o", markevery=[-1], clip_on=False)
            drawn.set(gid=f"series-{number}", label=f"{label} {points[-1][1]:.4g}" if label else None)
        axes.set_xlim(0, last_step)
        axes.set_xlabel("step")
        if best_step is not None and best_step <= last_step:
            axes.axvline(best_step, gid="best-step", **DASHED)
        if any(line.label for line in finite_lines):
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(finite_lines))
        axes.locator_params(axis="x", integer=True)
        return _svg(axes)


def thin_points(points: np.ndarray) -> np.ndarray:
    """(n, 2) points as at most MAX_POINTS: the means of runs of nearly equal length."""
    if len(points) <= MAX_POINTS:
        return points
    return np.stack([run.mean(axis=0) for run in np.array_split(points, MAX_POINTS)])


def reliability_plot(curve_points: Sequence[Mapping[str, float]]) -> str:
    """A plot of the share of right pixels over the confidence of each bin; on the dashed line both are equal.

    Args:
        curve_points: as `tasks.calibration.reliability_curve` gives them.
    """
    confidence = [point["confidence"] for point in curve_points]
    accuracy = [point["accuracy"] for point in curve_points]
    with _plot() as axes:
        axes.plot([0, 1], [0, 1], gid="calibrated", **DASHED)
        axes.plot(confidence, accuracy, color=SERIES[0], marker="o", clip_on=False, gid="series-0")
        axes.set_xlabel("confidence")
        axes.set_ylabel("share of right pixels")
        return _svg(axes)


def matrix_picture(matrix: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """A confusion matrix (num_classes, num_classes), rows truth, as uint8 (H, W, 3); colors are shares of the row.

    The picture grows with the classes. Beyond LABELED_CLASSES it has no numbers, and only as many names as fit.
    """
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    count = len(names)
    side = min(max(CELL * count, 2), LARGEST_SIDE)
    named = range(0, count, math.ceil(NAME_PITCH * count / side))
    labels = [shorten(names[index]) for index in named]
    buffer = io.BytesIO()
    with own_style() as figure_class, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # names in other scripts are boxes
        figure = figure_class(figsize=(side, side))
        axes = figure.add_axes((0, 0, 1, 1))  # names are drawn outside: `bbox_inches` includes them
        axes.imshow(shares, "Blues", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        if count <= LABELED_CLASSES:
            for row, column in zip(*np.nonzero(shares), strict=True):
                share = shares[row, column]
                color = "white" if share > DARK_CELL_SHARE else "black"
                axes.text(column, row, f"{100 * share:.1f}", color=color, ha="center", va="center")
        # a name is no formula, whatever dollar signs it has
        axes.set_yticks(named, labels, parse_math=False)
        axes.set_xticks(named, labels, parse_math=False, rotation=45, rotation_mode="anchor", ha="left")
        axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
        axes.set_xlabel("prediction, % of the truth's pixels")
        axes.set_ylabel("truth")
        figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=0.15)
    return np.asarray(Image.open(buffer).convert("RGB"))


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
def _plot() -> Iterator["Axes"]:
    """The axes of a new figure, in a context with the style of the page's plots."""
    with own_style(STYLE) as figure_class:
        yield figure_class(figsize=(WIDTH / 72, HEIGHT / 72), layout="constrained").add_subplot()


def _svg(axes: "Axes") -> str:
    """The figure of the axes as the source of an image."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue().encode()).decode()}"
