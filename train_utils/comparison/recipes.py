"""Runs grouped by recipe, and the tables of recipes and of the settings in which they differ."""

import shlex
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

REPLICATE = ("seed", "fold")  # the flags in which runs of one recipe differ
OUTSIDE_OF_RECIPE = {*REPLICATE, *NOT_REPEATED, *WITHOUT_EFFECT}
VERSIONS = ("git_commit", *PACKAGES)
COLUMNS = (
    Column("runs", "runs", ""),
    Column("compared_by", "score", ""),
    Column("mean", "mean"),
    Column("spread", "spread"),
    Column("lowest", "lowest"),
    Column("highest", "highest"),
    Column("images", "images", ""),
    Column("best_step", "best step", ""),
    Column("replicates", "seeds or folds", ""),
    Column("folders", "folders", ""),
)


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

    @property
    def mean_score(self) -> float:
        """The mean over its runs."""
        return mean(run.score for run in self.runs)

    @property
    def spread(self) -> float | None:
        """The standard deviation over its runs; None for one run."""
        if len(self.runs) == 1:
            return None
        return stdev(run.score for run in self.runs)


def group_runs(runs: Sequence[RecordedRun]) -> list[Recipe]:
    """The recipes of runs, whatever their order: those of one task stand together, the highest mean score first.

    Runs of a recipe differ by nothing but seed and fold, and by what the plan has chosen for both: that depends on the
    training images, which differ between folds. Where all that it has chosen is equal to what others typed, these
    belong to the recipe too.
    """
    by_typed: dict[str, list[RecordedRun]] = defaultdict(list)
    for run in runs:
        if run.is_finished:
            by_typed[_key(run, _planned_settings(run))].append(run)
    by_value: dict[str, list[RecordedRun]] = defaultdict(list)
    for key, group in by_typed.items():
        values = {_key(run) for run in group}
        if len(values) == 1:
            key = values.pop()
        by_value[key] += group
    groups = list(by_value.values())
    for run in runs:
        if not run.is_finished:
            groups.append([run])
    groups.sort(key=lambda group: (group[0].task, -mean(run.score for run in group)))
    return [Recipe(_label(index), group) for index, group in enumerate(groups)]


def have_same_basis(first: RecordedRun, second: RecordedRun) -> bool:
    """Whether two runs have the same task and the same classes, so that their scores mean the same."""
    return _basis(first) == _basis(second)


def _basis(run: RecordedRun) -> tuple[str, Any]:
    return run.task, run.settings.identity.get("classes")


def _key(run: RecordedRun, left_out: Iterable[str] = ()) -> str:
    """A text that is equal for runs of one task, with the same classes and settings but for those that are left out."""
    settings = _settings(run)
    compared = []
    for name in sorted(settings.keys() - left_out):
        if settings[name] is not None:  # None is the same as a flag that is not recorded
            compared.append((name, settings[name]))
    return repr((_basis(run), sorted(left_out), compared))


def _settings(run: RecordedRun) -> dict[str, Any]:
    """The settings that the numbers of a run depend on, without seed and fold."""
    flags = run.settings.flags
    settings = {name: value for name, value in flags.items() if name not in OUTSIDE_OF_RECIPE}
    return settings | {"precision": run.settings.profile.get("mixed_precision")}


def _planned_settings(run: RecordedRun) -> set[str]:
    """The settings that the plan has chosen, since the command does not give them."""
    if run.settings.flags.get("plan") != "auto":
        return set()
    command = str(run.settings.run.get("command", ""))
    try:
        words = shlex.split(command)
    except ValueError:  # earlier versions have recorded it without quotes
        words = command.split()
    typed_names = set()
    for word in words:
        if word.startswith("--"):
            flag = word.partition("=")[0].removeprefix("--no-")
            typed_names.add(flag.lstrip("-").replace("-", "_"))
    return set(UNPLANNED) - typed_names


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
        values = {
            "runs": str(len(runs)) if recipe.is_finished else "unfinished",
            "compared_by": runs[0].compared_by,
            "mean": recipe.mean_score,
            "spread": recipe.spread,
            "lowest": min(scores),
            "highest": max(scores),
            "images": _distinct(map(_image_count, runs)),
            "best_step": _distinct(f"{run.best_step:,} of {run.steps:,}" for run in runs),
            "replicates": _distinct(run.replicate for run in runs),
            "folders": _distinct(str(run.folder) for run in runs),
        }
        rows.append((recipe.label, values))
    return Table("Recipes", "recipe", COLUMNS, rows)


def _image_count(run: RecordedRun) -> str:
    if not run.image_scores:
        return "n/a"
    return f"{len(run.image_scores):,}"


def settings_table(recipes: Sequence[Recipe]) -> Table:
    """The settings and versions that differ between recipes, with a column for each recipe."""
    by_recipe: dict[str, dict[str, list[str]]] = {}  # the values of each setting in each recipe, as text
    for recipe in recipes:
        for run in recipe.runs:
            environment = run.settings.run
            versions = {name: environment[name] for name in VERSIONS if name in environment}
            for name, value in (_settings(run) | versions).items():
                by_recipe.setdefault(name, {}).setdefault(recipe.label, []).append(plain_text(value))
    rows = []
    for name, values in by_recipe.items():
        texts = {recipe.label: _distinct(values.get(recipe.label, ["-"]), " / ") for recipe in recipes}
        if len(set(texts.values())) > 1:
            rows.append((name.replace("_", " "), texts))
    columns = [Column(recipe.label, recipe.label, "") for recipe in recipes]
    return Table("Settings that differ", "setting", columns, rows)


def _distinct(texts: Iterable[str], separator: str = ", ") -> str:
    """The different texts, in their order."""
    return separator.join(dict.fromkeys(texts))
