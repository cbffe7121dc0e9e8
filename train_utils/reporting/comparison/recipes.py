"""Runs grouped by recipe, and the settings in which recipes differ."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean, stdev
from typing import Any, TypeVar

from train_utils.reporting.comparison.recorded_runs import RecordedRun
from train_utils.reporting.rendering import plain_text
from train_utils.settings.record import PACKAGES
from train_utils.settings.train_settings import NOT_REPEATED, UNPLANNED, WITHOUT_EFFECT

REPLICATE = ("seed", "fold")  # the flags in which runs of one recipe differ
OUTSIDE_OF_RECIPE = {*REPLICATE, *NOT_REPEATED, *WITHOUT_EFFECT}
VERSIONS = ("git_commit", *PACKAGES)
Item = TypeVar("Item")


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
    def scores(self) -> list[float]:
        """The score of each run."""
        return [run.score for run in self.runs]

    @property
    def mean_score(self) -> float:
        """The mean over its runs."""
        return mean(self.scores)

    @property
    def spread(self) -> float | None:
        """The standard deviation over its runs; None for one run."""
        return stdev(self.scores) if len(self.runs) > 1 else None


def group_runs(runs: Sequence[RecordedRun]) -> list[Recipe]:
    """The recipes of runs, whatever their order: those of one task stand together, the highest mean score first.

    Runs of a recipe differ by nothing but seed and fold, and by what the plan has chosen for both: that depends on the
    training images, which differ between folds. Where all that it has chosen is equal to what others typed, these
    belong to the recipe too.
    """
    finished_runs = [run for run in runs if run.is_finished]
    groups = _grouped(finished_runs, _recipe_key)
    groups = [list(chain.from_iterable(equal)) for equal in _grouped(groups, _value_key)]
    groups += [[run] for run in runs if not run.is_finished]
    groups.sort(key=_rank)
    return [Recipe(_label(index), group) for index, group in enumerate(groups)]


def _grouped(items: Sequence[Item], key: Callable[[Item], str]) -> list[list[Item]]:
    """The items of each key, in their order."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _recipe_key(run: RecordedRun) -> str:
    """A text that is equal for runs with the same settings, but for those that the plan has chosen for both."""
    planned = _planned_settings(run)
    chosen = {name: value for name, value in _settings(run).items() if name not in planned}
    return repr((_basis(run), sorted(planned), _comparable(chosen)))


def _value_key(group: Sequence[RecordedRun]) -> str:
    """A text that is equal for groups in which all runs have the same settings, whether typed or planned."""
    values = {repr(_comparable(_settings(run))) for run in group}
    return repr((_basis(group[0]), values.pop())) if len(values) == 1 else _recipe_key(group[0])


def _comparable(settings: dict[str, Any]) -> list[tuple[str, Any]]:
    """Settings in order; None is the same as a flag that is not recorded."""
    return sorted((name, value) for name, value in settings.items() if value is not None)


def _basis(run: RecordedRun) -> tuple[str, Any]:
    """The task and the classes of a run: where they are the same, scores mean the same."""
    return run.task, run.settings.identity.get("classes")


def have_same_basis(first: RecordedRun, second: RecordedRun) -> bool:
    """Whether two runs have the same task and the same classes, so that their scores mean the same."""
    return _basis(first) == _basis(second)


def differing_settings(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """The settings and versions that differ between recipes: name -> the value in each recipe, as text."""
    columns = []
    names: dict[str, None] = {}  # a set in order
    for recipe in recipes:
        column = [_settings(run) | _versions(run) for run in recipe.runs]
        columns.append(column)
        for settings in column:
            names |= dict.fromkeys(settings)
    rows = {}
    for name in names:
        texts = []
        for column in columns:
            values = [settings.get(name) for settings in column]
            texts.append(_join_values(values))
        if len(set(texts)) > 1:
            rows[name] = texts
    return rows


def _rank(group: Sequence[RecordedRun]) -> tuple[str, float]:
    return group[0].task, -mean(run.score for run in group)


def _label(index: int) -> str:
    """A to Z, then AA, AB and so on."""
    letter = chr(ord("A") + index % 26)
    return letter if index < 26 else _label(index // 26 - 1) + letter


def _settings(run: RecordedRun) -> dict[str, Any]:
    """The settings that the numbers of a run depend on, without seed and fold."""
    flags = run.settings.flags
    settings = {name: value for name, value in flags.items() if name not in OUTSIDE_OF_RECIPE}
    return settings | {"precision": run.settings.profile.get("mixed_precision")}


def _versions(run: RecordedRun) -> dict[str, Any]:
    environment = run.settings.run
    return {name: environment[name] for name in VERSIONS if name in environment}


def _planned_settings(run: RecordedRun) -> set[str]:
    """The settings that the plan has chosen, since the command does not give them."""
    if run.settings.flags.get("plan") != "auto":
        return set()
    typed_names = set()
    for word in _words(str(run.settings.run.get("command", ""))):
        if word.startswith("--"):
            flag = word.partition("=")[0].removeprefix("--no-")
            typed_names.add(flag.lstrip("-").replace("-", "_"))
    return set(UNPLANNED) - typed_names


def _words(command: str) -> list[str]:
    """The words of a command; earlier versions have recorded it without quotes."""
    try:
        return shlex.split(command)
    except ValueError:  # a quote that nothing closes
        return command.split()


def _join_values(values: Sequence[Any]) -> str:
    """The different values, in their order."""
    texts = dict.fromkeys(map(plain_text, values))
    return " / ".join(texts)
