"""The page of a comparison: one self-contained file in the style of report.html."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_utils.image_io.reader import read_image
from runtime.errors import ImageError
from tasks import TASKS
from tasks.charts import SERIES, Line, line_chart
from tasks.drawing import to_rgb
from tasks.tables import Table
from train_utils.comparison.recipes import Recipe, RecordedRun
from train_utils.metrics_log import series
from train_utils.reporting.pages import reduce_picture, write_html
from train_utils.reporting.samples import picture_file

IMAGES = 8  # images that are shown with the pictures of several recipes
PANEL_SIDE = 1000  # pixels of the longer side of a row of pictures
LOSSES = {"Validation loss": "eval/loss", "Training loss": "train/loss"}


def write_page(
    file: Path,
    recipes: Sequence[Recipe],
    tables: Sequence[Table],
    sentences: Sequence[str],
    lines: Sequence[str],
) -> None:
    """Write the page, at most about four megabytes. Raises OSError.

    Args:
        tables: of the recipes, and of the settings in which they differ.
        sentences: on the differences of recipes.
        lines: the obstacles to the comparison.
    """
    plotted_recipes = recipes[: len(SERIES)]
    write_html(
        file,
        "comparison.html.jinja",
        _panels(plotted_recipes),
        side=PANEL_SIDE,
        tables=tables,
        colors={recipe.label: color for recipe, color in zip(plotted_recipes, SERIES, strict=False)},
        sentences=sentences,
        lines=lines,
        charts=_charts(plotted_recipes),
    )


def _charts(recipes: Sequence[Recipe]) -> dict[str, str]:
    """The curves of all runs in common charts, by title: the score of each task, and the losses."""
    keys = {}
    for recipe in recipes:
        run = recipe.runs[0]
        keys[f"Validation {run.compared_by}"] = TASKS[run.task].task.scores.score_key()
    charts = {}
    for title, key in (keys | LOSSES).items():
        lines = []
        for color, recipe in enumerate(recipes):
            for run in recipe.runs:
                lines.append(Line(series(run.records, key), color))
        chart = line_chart(lines)
        if chart is not None:
            charts[title] = chart
    return charts


def _panels(recipes: Sequence[Recipe]) -> dict[str, dict[str, np.ndarray]]:
    """{image: {caption: (H, W, 3) uint8}} as a run of each recipe drew it, the largest score differences first."""
    if len(recipes) == 1:
        labeled = [(str(run.folder), run) for run in recipes[0].runs[: len(SERIES)]]
    else:
        first = recipes[0].runs[0].replicate  # runs of one seed and fold have the same images
        labeled = []
        for recipe in recipes:
            alike = [run for run in recipe.runs if run.replicate == first]
            labeled.append((recipe.label, (alike or recipe.runs)[0]))
    panels: dict[str, dict[str, np.ndarray]] = {}
    for name in _images_to_show([run for _, run in labeled]):
        row = {}
        for label, run in labeled:
            pixels = _picture(run, name)
            if pixels is None:
                continue
            caption = label
            if name in run.image_scores:
                caption += f": {run.compared_by} {run.image_scores[name]:.4f}"
            row[caption] = pixels
        if len(row) > 1:
            panels[name] = row
        if len(panels) == IMAGES:
            break
    return panels


def _images_to_show(runs: Sequence[RecordedRun]) -> list[str]:
    """Names of the images that two or more runs have scored and saved pictures for, the largest difference first."""
    scores_by_image: dict[str, list[float]] = {}
    for run in runs:
        for name, score in run.image_scores.items():
            if picture_file(run.folder / "predictions", name).is_file():
                scores_by_image.setdefault(name, []).append(score)
    ranges = {}
    for name, scores in scores_by_image.items():
        if len(scores) > 1:
            ranges[name] = max(scores) - min(scores)
    return sorted(ranges, key=ranges.__getitem__, reverse=True)


def _picture(run: RecordedRun, name: str) -> np.ndarray | None:
    """The panel of an image; None if the run has no panel of it, or a damaged one."""
    file = picture_file(run.folder / "predictions", name)
    try:
        pixels = read_image(file, str(file))
    except (ImageError, OSError):
        return None
    return reduce_picture(to_rgb(pixels), PANEL_SIDE)
