"""The tables of a comparison, for the page and, as plain text, for the terminal."""

from collections.abc import Sequence

from tasks.confusion import score_text
from train_utils.reporting.comparison.recipes import Recipe
from train_utils.reporting.comparison.recorded_runs import RecordedRun

COLUMNS = ("recipe", "runs", "score", "spread", "lowest", "highest", "images", "best step", "seeds or folds", "folders")
LONGEST_CELL = 60  # characters on the terminal


def recipe_rows(recipes: Sequence[Recipe]) -> list[dict[str, str]]:
    """A row for each recipe: column -> cell."""
    rows = []
    for recipe in recipes:
        counts = _distinct([_image_count(run) for run in recipe.runs])
        steps = _distinct([f"{run.best_step:,} of {run.steps:,}" for run in recipe.runs])
        cells = (
            recipe.label,
            str(len(recipe.runs)) if recipe.is_finished else "unfinished",
            f"{recipe.runs[0].compared_by} {score_text(recipe.mean_score)}",
            score_text(recipe.spread),
            score_text(min(recipe.scores)),
            score_text(max(recipe.scores)),
            counts,
            steps,
            _distinct([str(run.replicate) for run in recipe.runs]),
            _distinct([run.name for run in recipe.runs]),
        )
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows


def _image_count(run: RecordedRun) -> str:
    """The number of images for which the run has scores, as text."""
    if not run.image_scores:
        return "n/a"
    return f"{len(run.image_scores):,}"


def terminal_text(recipes: Sequence[Recipe], settings: dict[str, list[str]]) -> str:
    """The recipes and the settings in which they differ, as lines of plain text."""
    rows = [list(COLUMNS)] + [list(row.values()) for row in recipe_rows(recipes)]
    lines = _align_columns(rows)
    if settings:
        rows = [["setting", *(recipe.label for recipe in recipes)]]
        rows += [[name, *texts] for name, texts in settings.items()]
        lines += ["", *_align_columns(rows)]
    return "\n".join(lines)


def _align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells in columns, each as wide as its widest cell."""
    shortened_rows = [list(map(_shorten_cell, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shortened_rows, strict=True)]
    lines = []
    for row in shortened_rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _shorten_cell(cell: str) -> str:
    return cell if len(cell) <= LONGEST_CELL else f"{cell[: LONGEST_CELL - 3]}..."


def _distinct(texts: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
