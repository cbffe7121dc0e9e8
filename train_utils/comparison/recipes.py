"""Runs grouped by recipe, and the tables of recipes and of the settings in which they differ."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from tasks.tables import Column, Table
from train_utils.comparison.runs import RecordedRun
from train_utils.reporting.pages import plain_text
from train_utils.settings.record import PACKAGES
from train_utils.settings.train_settings import NOT_REPEATED, UNPLANNED, WITHOUT_EFFECT

FLAG = re.compile(r"(?<![^\s'])--(?:no-)?([a-z-]+)")  # in a command that is quoted for a shell
REPLICATE = ("seed", "fold")  # the flags in which runs of one recipe differ
OUTSIDE_OF_RECIPE = {*REPLICATE, *NOT_REPEATED, *WITHOUT_EFFECT}
VERSIONS = ("git_commit", *PACKAGES)


@dataclass(frozen=True, eq=False)
class Recipe:
    """Finished runs that differ by seed and fold alone, or one run that has not finished.

    Args:
        label: A, B and so on.
    """

    label: str
    runs: Sequence[RecordedRun]

    @property
    def is_finished(self) -> bool:
        """Whether the runs of the recipe have made all their steps."""
        return all(run.is_finished for run in self.runs)


def group_runs(runs: Sequence[RecordedRun]) -> list[Recipe]:
    """The recipes of runs, whatever their order: those of one task stand together, the highest mean score first.

    Runs of a recipe differ by nothing but seed and fold, and by what the plan has chosen for both: that depends on the
    training images, which differ between folds.
    """
    finished: dict[str, list[RecordedRun]] = defaultdict(list)
    for run in runs:
        if run.is_finished:
            finished[_key(run)].append(run)
    groups = [*finished.values(), *([run] for run in runs if not run.is_finished)]
    groups.sort(key=lambda group: (group[0].task, -mean(run.score for run in group)))
    return [Recipe(_label(index), group) for index, group in enumerate(groups)]


def _key(run: RecordedRun) -> str:
    """A text that is equal for runs of one task, with the same classes and settings but for those of the plan."""
    planned = _planned_settings(run)
    compared = []
    for name, value in sorted(_settings(run).items()):
        if value is not None and name not in planned:  # None is the same as a flag that is not recorded
            compared.append((name, value))
    return repr((run.basis, sorted(planned), compared))


def _settings(run: RecordedRun) -> dict[str, Any]:
    """The settings that the numbers of a run depend on, without seed and fold."""
    flags = run.settings.flags
    settings = {name: value for name, value in flags.items() if name not in OUTSIDE_OF_RECIPE}
    return settings | {"precision": run.settings.profile.get("mixed_precision")}


def _planned_settings(run: RecordedRun) -> set[str]:
    """The settings that the plan has chosen, since the command does not give them."""
    if run.settings.flags.get("plan") != "auto":
        return set()
    typed = set()
    for flag in FLAG.findall(run.settings.run.get("command", "")):
        typed.add(flag.replace("-", "_"))
    return set(UNPLANNED) - typed


def _label(index: int) -> str:
    """A to Z, then AA, AB and so on."""
    letter = chr(ord("A") + index % 26)
    if index < 26:
        return letter
    return _label(index // 26 - 1) + letter


def recipe_table(recipes: Sequence[Recipe]) -> Table:
    """A row for each recipe."""
    rows = []
    for recipe in recipes:
        runs = recipe.runs
        scores = [run.score for run in runs]
        cells = {
            "runs": str(len(runs)) if recipe.is_finished else "unfinished",
            "score": runs[0].compared_by,
            "mean": f"{mean(scores):.4f}",
            "spread": f"{stdev(scores):.4f}" if len(scores) > 1 else "n/a",
            "lowest": f"{min(scores):.4f}",
            "highest": f"{max(scores):.4f}",
            "images": _distinct(f"{len(run.image_scores):,}" if run.image_scores else "n/a" for run in runs),
            "best step": _distinct(f"{run.best_step:,} of {run.steps:,}" for run in runs),
            "seeds or folds": _distinct(run.replicate for run in runs),
            "folders": _distinct(str(run.folder) for run in runs),
        }
        rows.append((recipe.label, cells))
    return Table("Recipes", "recipe", [Column(title, title, "") for title in rows[0][1]], rows)


def settings_table(recipes: Sequence[Recipe]) -> Table:
    """The settings and versions that differ between recipes, with a column for each recipe."""
    texts: dict[str, dict[str, list[str]]] = {}  # of each setting in each recipe
    for recipe in recipes:
        for run in recipe.runs:
            versions = {name: run.settings.run[name] for name in VERSIONS if name in run.settings.run}
            for name, value in (_settings(run) | versions).items():
                texts.setdefault(name, {}).setdefault(recipe.label, []).append(plain_text(value))
    rows = []
    for name, by_recipe in texts.items():
        cells = {recipe.label: _distinct(by_recipe.get(recipe.label, ["-"]), " / ") for recipe in recipes}
        if len(set(cells.values())) > 1:
            rows.append((name.replace("_", " "), cells))
    return Table(
        "Settings that differ", "setting", [Column(recipe.label, recipe.label, "") for recipe in recipes], rows
    )


def _distinct(texts: Iterable[str], separator: str = ", ") -> str:
    """The different texts, in their order."""
    return separator.join(dict.fromkeys(texts))
