"""Runs as their folders record them: settings, curves, and the score of each validation image."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from runtime.console import counted
from runtime.documents import read_json_lines
from runtime.errors import DataError
from tasks import TASKS
from train_utils.metrics_log import IMAGE_SCORES, LogRecord, is_record, read_image_scores, series
from train_utils.settings.record import FINISHED_FILE, RunSettings


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run that has been evaluated at least once.

    Args:
        folder: as it was typed.
        records: the lines of metrics.jsonl.
        score: the score of the best evaluation, by which models are compared.
        best_step: the step of the best evaluation.
        image_scores: the score of each validation image at that step; empty if the run has not saved them.
        steps: how many steps the run has made.
        is_finished: whether these are all its steps.
    """

    folder: Path
    settings: RunSettings
    records: Sequence[LogRecord]
    score: float
    best_step: int
    image_scores: Mapping[str, float]
    steps: int
    is_finished: bool

    @property
    def task(self) -> str:
        """The name of the run's task."""
        return self.settings.identity["task"]

    @property
    def basis(self) -> tuple[str, Any]:
        """The task and the classes; scores of runs with others mean something else."""
        return self.task, self.settings.identity.get("classes")

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
        lines, damaged = read_json_lines(folder / "metrics.jsonl")
    except (OSError, ValueError) as error:
        raise DataError(f"metrics.jsonl cannot be read ({_reason(error)})") from error
    records = [record for _, record in lines if is_record(record)]
    damaged += len(lines) - len(records)
    if damaged:
        text = counted(damaged, "line of metrics.jsonl is", "lines of metrics.jsonl are")
        remarks.append(f"{text} damaged and left out")
    best_step, score = _best(records, TASKS[settings.identity["task"]].task.scores.score_key())
    # not every step is logged: a checkpoint may be newer
    saved = [path.name.removeprefix("step-") for path in folder.glob("checkpoints/step-*")]
    steps = max([records[-1]["step"], *(int(step) for step in saved if step.isdecimal())])
    is_finished = (folder / FINISHED_FILE).is_file()
    if not is_finished:
        progress = f"step {steps:,}"
        if settings.total_steps:
            progress += f" of {settings.total_steps:,}"
        remarks.append(f"the run has not finished ({progress}); it is shown, and left out of the differences")
    image_scores: Mapping[str, float] = {}
    try:
        image_scores = read_image_scores(folder)
    except (OSError, ValueError) as error:
        remarks.append(f"{IMAGE_SCORES} cannot be read ({_reason(error)}); its images cannot be compared")
    return RecordedRun(folder, settings, records, score, best_step, image_scores, steps, is_finished), remarks


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


def _best(records: Sequence[LogRecord], key: str) -> tuple[int, float]:
    """Step and score of the best evaluation: the first of equal ones, as the run itself keeps it."""
    evaluations = [(step, score) for step, score in series(records, key) if 0 <= score <= 1]
    if not evaluations:
        raise DataError("the run has no evaluation yet")
    return max(evaluations, key=itemgetter(1))


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
