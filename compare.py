"""Compare training runs: which settings differ, how far their scores are apart, and whether that says which is better.

python compare.py runs/*
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import begin_imports

    begin_imports()


import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from data_utils.image_io.reader import read_image
from runtime.cli import Arguments, check_free
from runtime.console import say
from runtime.errors import DataError, ImageError, SettingsError
from runtime.script import run_script
from runtime.settings import reader
from tasks import TASKS
from tasks.charts import SERIES, Line, line_chart
from tasks.drawing import to_rgb
from tasks.tables import as_text
from train_utils.comparison.differences import compare_recipes
from train_utils.comparison.recipes import Recipes, RecordedRun, group_runs, read_runs, recipe_table, settings_table
from train_utils.metrics_log import series
from train_utils.reporting.pages import reduce_picture, write_html
from train_utils.reporting.samples import picture_file

IMAGES = 8  # images that are shown with the pictures of several runs
PANEL_SIDE = 1000  # pixels of the longer side of a row of pictures
LOSSES = {"Validation loss": "eval/loss", "Training loss": "train/loss"}


def parse_args(description: str) -> argparse.Namespace:
    parser = Arguments(description, usage="python compare.py RUN RUN ... [--output FILE] [--overwrite]")
    parser.add_argument("runs", nargs="+", type=reader(Path), metavar="RUN", help="output folder of train.py")
    page = "the page to write (default: %(default)s)"
    parser.add_argument("--output", type=reader(Path), default=Path("comparison.html"), metavar="FILE", help=page)
    parser.add_argument("--overwrite", action="store_true", help="replace the page that is there")
    return parser.parse_args()


def draw_charts(recipes: Recipes) -> dict[str, str]:
    """The curves of all runs in common charts, by title: the score of each task, and the losses."""
    keys = {}
    for run, *_ in recipes.values():
        keys[f"Validation {run.compared_by}"] = TASKS[run.task].task.scores.score_key()
    charts = {}
    for title, key in (keys | LOSSES).items():
        lines = []
        for color, runs in enumerate(recipes.values()):
            for run in runs:
                lines.append(Line(series(run.records, key), color))
        chart = line_chart(lines)
        if chart is not None:
            charts[title] = chart
    return charts


def read_pictures(recipes: Recipes) -> dict[str, dict[str, np.ndarray]]:
    """{image: {caption: (H, W, 3) uint8}} as a run of each recipe drew it, the largest score differences first."""
    shown = choose_runs(recipes)
    scores: dict[str, list[float]] = defaultdict(list)
    for run in shown.values():
        for name, score in run.image_scores.items():
            if picture_file(run.folder / "predictions", name).is_file():
                scores[name].append(score)
    names = [name for name in scores if len(scores[name]) > 1]
    names.sort(key=lambda name: max(scores[name]) - min(scores[name]), reverse=True)
    views: dict[str, dict[str, np.ndarray]] = {}
    for name in names:
        row = {}
        for label, run in shown.items():
            file = picture_file(run.folder / "predictions", name)
            try:
                picture = to_rgb(read_image(file, str(file)))
            except (ImageError, OSError):  # the run has no picture of the image, or a damaged one
                continue
            caption = label
            if name in run.image_scores:
                caption += f": {run.compared_by} {run.image_scores[name]:.4f}"
            row[caption] = reduce_picture(picture, PANEL_SIDE)
        if len(row) > 1:
            views[name] = row
        if len(views) == IMAGES:
            break
    return views


def choose_runs(recipes: Recipes) -> dict[str, RecordedRun]:
    """The runs whose pictures are shown, by label: one of each recipe, or, by folder, several of a single recipe."""
    first, *others = recipes.values()
    if not others:
        return {str(run.folder): run for run in first[: len(SERIES)]}
    chosen = {}
    for label, runs in recipes.items():
        alike = [run for run in runs if run.replicate == first[0].replicate]  # runs of one seed and fold share images
        chosen[label] = (alike or runs)[0]
    return chosen


def main() -> None:
    args = parse_args(__doc__)
    check_free(f"--output {args.output}", [args.output], overwrite=args.overwrite)

    # 1. Runs: from the files in their folders; no data set and no model is opened
    runs, lines = read_runs(args.runs)
    if not runs:
        raise DataError("; ".join([*lines, "no run is left to compare; give output folders of train.py, as runs/*"]))

    # 2. Recipes: runs that differ only by seed and fold belong together
    recipes = group_runs(runs)
    tables = [recipe_table(recipes), settings_table(recipes)]
    sentences, remarks = compare_recipes(recipes)
    lines += remarks
    if len(recipes) == 1:
        lines.append("all runs are of one recipe, by seed and fold: their spread is what another one has to exceed")

    # 3. Report: on the terminal, and as a page of at most about four megabytes
    for line in lines:
        say(line)
    say("\n\n".join(as_text(table) for table in tables if table.rows))
    for sentence in sentences:
        say(sentence)
    colors = dict(zip(recipes, SERIES, strict=False))
    plotted = {label: recipes[label] for label in colors}
    values = {"tables": tables, "colors": colors, "sentences": sentences, "lines": lines}
    try:
        write_html(
            args.output,
            "comparison.html.jinja",
            read_pictures(plotted),
            side=PANEL_SIDE,
            charts=draw_charts(plotted),
            **values,
        )
    except OSError as error:
        raise SettingsError(f"--output {args.output} cannot be written ({error.strerror}); choose another") from error
    say(f"page in {args.output.resolve()}")


if __name__ == "__main__":
    run_script(main)
