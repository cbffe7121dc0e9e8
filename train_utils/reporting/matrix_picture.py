"""A confusion matrix as a picture, drawn by matplotlib."""

import io
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from runtime.redact import shorten
from train_utils.reporting.charts import own_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELED_CLASSES = 20  # a larger confusion matrix has no numbers
DPI = 100
# a labeled matrix
CELL = 0.48  # inches
FONT = 13  # points
# a larger one
SMALL_FONT = 10  # points
LABEL_PITCH = 0.2  # inches between two names
# colors of the shares 0 and 1
LEAST_COLOR = (238, 241, 246)
MOST_COLOR = (37, 99, 235)
DARK_CELL_SHARE = 0.55  # from this share on, text in a cell is white
INK = "#1c2430"
FAINT = "#5c6675"


def matrix_picture(matrix: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """A confusion matrix (num_classes, num_classes), rows truth, as uint8 (H, W, 3); colors are shares of the row.

    The picture grows with the classes. Beyond LABELED_CLASSES it has no numbers, and only as many names as fit.
    """
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    count = len(names)
    labeled = count <= LABELED_CLASSES
    if labeled:
        side = max(CELL * count, 2)  # inches
        interval = 1
    else:
        side = min(max(LABEL_PITCH * count, 8), 12)
        interval = math.ceil(LABEL_PITCH * count / side)
    buffer = io.BytesIO()
    with own_style() as figure_class, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # names in other scripts are boxes
        figure = figure_class(figsize=(side, side), dpi=DPI)
        axes = figure.add_axes((0, 0, 1, 1))  # names are drawn outside: `bbox_inches` includes them
        _draw_shares(axes, shares, labeled)
        _name_classes(axes, names, interval, cell=side / count)
        figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=0.15)
    return np.asarray(Image.open(buffer).convert("RGB"))


def _draw_shares(axes: "Axes", shares: np.ndarray, labeled: bool) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("shares", [np.divide(color, 255) for color in (LEAST_COLOR, MOST_COLOR)])
    cells = axes.imshow(shares, colors, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    if not labeled:
        bar = axes.figure.colorbar(cells, ax=axes, location="bottom", fraction=0.025, pad=0.02, aspect=50)
        bar.outline.set_visible(False)
        bar.set_label("share of the row's pixels", fontsize=SMALL_FONT, color=INK)
        return
    for row, column in zip(*np.nonzero(shares), strict=True):
        share = shares[row, column]
        ink = "white" if share > DARK_CELL_SHARE else INK
        axes.text(column, row, f"{100 * share:.0f}", color=ink, fontsize=FONT, ha="center", va="center")
    edges = np.arange(1, len(shares)) - 0.5
    axes.hlines(edges, -0.5, len(shares) - 0.5, "white", linewidth=1)
    axes.vlines(edges, -0.5, len(shares) - 0.5, "white", linewidth=1)
    below: dict[str, Any] = {"xytext": (0, -10), "textcoords": "offset points", "ha": "center", "va": "top"}
    axes.annotate(
        "% of the row's pixels", (0.5, 0), xycoords="axes fraction", fontsize=SMALL_FONT, color=FAINT, **below
    )


def _name_classes(axes: "Axes", names: Sequence[str], interval: int, cell: float) -> None:
    """Write every `interval`-th class name at its row and its column; a cell is `cell` inches wide."""
    size = FONT if len(names) <= LABELED_CLASSES else SMALL_FONT
    indices = range(0, len(names), interval)
    labels = [shorten(names[index]) for index in indices]
    longest = max(map(len, labels)) * 0.65 * size / 72  # inches; 0.65: about the width of a letter by its height
    rotation: dict[str, Any] = {}
    if longest >= cell:
        angle = 45 if size == FONT else 90
        rotation = {"rotation": angle, "rotation_mode": "anchor", "ha": "left", "va": "center"}
    # a name is no formula, whatever dollar signs it has
    axes.set_yticks(indices, labels, fontsize=size, color=INK, parse_math=False)
    axes.set_xticks(indices, labels, fontsize=size, color=INK, parse_math=False, **rotation)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("prediction", fontsize=size, color=FAINT)
    axes.set_ylabel("truth", fontsize=size, color=FAINT)
