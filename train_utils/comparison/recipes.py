"""Runs as their folders record them, grouped by recipe, and the tables of recipes and of settings that differ."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import mean, stdev
from string import ascii_uppercase
from typing import Any

from runtime.console import counted
from runtime.errors import DataError
from tasks import TASKS
from tasks.tables import Column, Table
from train_utils.metrics_log import IMAGE_SCORES, LogRecord, read_image_scores, read_log, series
from train_utils.reporting.pages import plain_text
from train_utils.settings.record import FINISHED_FILE, PACKAGES, RunSettings
from train_utils.settings.train_settings import NOT_REPEATED, UNPLANNED, WITHOUT_EFFECT

FLAG = re.compile(r"(?<![^\s'])--(?:no-)?([a-z-]+)")  # in a command that is quoted for a shell
REPLICATE = ("seed", "fold")  # the flags in which runs of one recipe differ
OUTSIDE_OF_RECIPE = {*REPLICATE, *NOT_REPEATED, *WITHOUT_EFFECT}
VERSIONS = ("git_commit", *PACKAGES)


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run that has been evaluated at least once.

    Args:
        folder: as it was typed.
        records: the lines of metrics.jsonl.
        score: the score of the best evaluation, by which models are compared.
        best_step: the step of the best evaluation.
        image_scores: the score of each validation image at that step; empty if the run has not saved them.
        is_finished: whether the run has made all its steps.
    """

    folder: Path
    settings: RunSettings
    records: Sequence[LogRecord]
    score: float
    best_step: int
    image_scores: Mapping[str, float]
    is_finished: bool

    @property
    def task(self) -> str:
        """The name of the run's task."""
        return self.settings.identity["task"]

    @property
    def classes(self) -> Any:
        """What tells the classes of the run from others; scores of runs with others mean something else."""
        return self.settings.identity.get("classes")

    @property
    def compared_by(self) -> str:
        """The name of the run's score."""
        return TASKS[self.task].task.scores.compared.title

    @property
    def replicate(self) -> str:
        """What tells runs of one recipe apart: the seed, and the fold where there are folds."""
        flags = self.settings.flags
        fold = f"fold {flags['fold']}, " if flags.get("fold") else ""
        return f"{fold}seed {flags.get('seed')}"


# by label, A, B and so on: finished runs that differ by seed and fold alone, or one run that has not finished
Recipes = Mapping[str, Sequence[RecordedRun]]


def read_runs(folders: Iterable[Path]) -> tuple[list[RecordedRun], list[str]]:
    """The runs in the folders, each once, and a line for each run that cannot be compared, or only in part."""
    runs = []
    lines = []
    different = {folder.resolve(): folder for folder in folders}
    for folder in different.values():
        try:
            run, remarks = read_run(folder)
        except DataError as error:
            lines.append(f"{folder}: {error}; it is left out")
            continue
        runs.append(run)
        lines += [f"{folder}: {remark}" for remark in remarks]
    return runs, lines


def read_run(folder: Path) -> tuple[RecordedRun, list[str]]:
    """A run, and lines on its missing parts.

    Raises DataError, without the name of the folder, if the run has no score.
    """
    settings = read_settings(folder)
    remarks = []
    try:
        records, damaged = read_log(folder)
    except OSError as error:
        raise DataError(f"metrics.jsonl cannot be read ({_reason(error)})") from error
    if damaged:
        text = counted(damaged, "line of metrics.jsonl is", "lines of metrics.jsonl are")
        remarks.append(f"{text} damaged and left out")
    key = TASKS[settings.identity["task"]].task.scores.score_key()
    evaluations = [(step, score) for step, score in series(records, key) if 0 <= score <= 1]
    if not evaluations:
        raise DataError("the run has no evaluation yet")
    best_step, score = max(evaluations, key=itemgetter(1))  # the first of equal ones, as the run itself keeps it
    is_finished = (folder / FINISHED_FILE).is_file()
    if not is_finished:
        progress = f"step {records[-1]['step']:,}"
        if settings.total_steps:
            progress += f" of {settings.total_steps:,}"
        remarks.append(f"the run has not finished ({progress}); it is shown, and left out of the differences")
    image_scores: Mapping[str, float] = {}
    try:
        image_scores = read_image_scores(folder)
    except (OSError, ValueError) as error:
        remarks.append(f"{IMAGE_SCORES} cannot be read ({_reason(error)}); its images cannot be compared")
    return RecordedRun(folder, settings, records, score, best_step, image_scores, is_finished), remarks


def read_settings(folder: Path) -> RunSettings:
    """The content of run.json. Raises DataError if it is not the record of a run that this version knows."""
    if not folder.is_dir():
        raise DataError("it is no folder of a run")
    try:
        settings = RunSettings.read(folder)
    except FileNotFoundError as error:
        raise DataError("it holds no run.json, so it is no run") from error
    except (OSError, ValueError) as error:
        raise DataError(f"run.json cannot be read ({_reason(error)})") from error
    task = settings.identity["task"]
    if not isinstance(task, str) or task not in TASKS:
        raise DataError(f"its task {task!r} is not known to this version")
    return settings


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def group_runs(runs: Iterable[RecordedRun]) -> Recipes:
    """The recipes of runs: those of one task stand together, the highest mean score first."""
    groups: dict[str, list[RecordedRun]] = defaultdict(list)
    for run in runs:
        key = _recipe_key(run) if run.is_finished else str(run.folder)
        groups[key].append(run)
    recipes = {}
    ordered = sorted(groups.values(), key=lambda group: (group[0].task, -mean(run.score for run in group)))
    for index, group in enumerate(ordered):
        repeats, letter = divmod(index, len(ascii_uppercase))
        recipes[ascii_uppercase[letter] * (1 + repeats)] = group  # AA comes after Z
    return recipes


def _recipe_key(run: RecordedRun) -> str:
    """A text that is equal for runs of one task and of the same classes that differ by nothing but seed and fold.

    What the plan has chosen for both may differ: it depends on the training images, which differ between folds.
    """
    planned: set[str] = set()
    if run.settings.flags.get("plan") == "auto":
        typed = {flag.replace("-", "_") for flag in FLAG.findall(run.settings.run.get("command", ""))}
        planned = set(UNPLANNED) - typed
    compared = []
    for name, value in sorted(_settings(run).items()):
        if value is not None and name not in planned:  # None is the same as a flag that is not recorded
            compared.append((name, value))
    return repr((run.task, run.classes, sorted(planned), compared))


def _settings(run: RecordedRun) -> dict[str, Any]:
    """The settings that the numbers of a run depend on, without seed and fold."""
    flags = run.settings.flags
    settings = {name: value for name, value in flags.items() if name not in OUTSIDE_OF_RECIPE}
    return settings | {"precision": run.settings.profile.get("mixed_precision")}


def recipe_table(recipes: Recipes) -> Table:
    """A row for each recipe."""
    rows = []
    for label, runs in recipes.items():
        scores = [run.score for run in runs]
        cells = {
            "runs": str(len(runs)) if runs[0].is_finished else "unfinished",
            "score": runs[0].compared_by,
            "mean": f"{mean(scores):.4f}",
            "spread": f"{stdev(scores):.4f}" if len(scores) > 1 else "n/a",
            "lowest": f"{min(scores):.4f}",
            "highest": f"{max(scores):.4f}",
            "images": _distinct(f"{len(run.image_scores):,}" if run.image_scores else "n/a" for run in runs),
            "best step": _distinct(f"{run.best_step:,} of {run.records[-1]['step']:,}" for run in runs),
            "seeds or folds": _distinct((run.replicate for run in runs), "; "),
            "folders": _distinct(str(run.folder) for run in runs),
        }
        rows.append((label, cells))
    return Table("Recipes", "recipe", [Column(title, title, "") for title in rows[0][1]], rows)


def settings_table(recipes: Recipes) -> Table:
    """The settings and versions that differ between recipes, with a column for each recipe."""
    texts: dict[str, dict[str, list[str]]] = {}  # of each setting in each recipe
    for label, runs in recipes.items():
        for run in runs:
            versions = {name: run.settings.run[name] for name in VERSIONS if name in run.settings.run}
            for name, value in (_settings(run) | versions).items():
                texts.setdefault(name, {}).setdefault(label, []).append(plain_text(value))
    rows = []
    for name, by_recipe in texts.items():
        cells = {label: _distinct(by_recipe.get(label, ["-"]), " / ") for label in recipes}
        if len(set(cells.values())) > 1:
            rows.append((name.replace("_", " "), cells))
    return Table("Settings that differ", "setting", [Column(label, label, "") for label in recipes], rows)


def _distinct(texts: Iterable[str], separator: str = ", ") -> str:
    """The different texts, in their order."""
    return separator.join(dict.fromkeys(texts))
