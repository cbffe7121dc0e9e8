"""All that belongs to a task, by what asks for it."""

from typing import NamedTuple

from data_utils.targets.reader import TargetReader
from tasks.prediction_format import PredictionFormat
from tasks.section import Section
from tasks.task import Task


class TaskKind(NamedTuple):
    """The parts of a task, each a class in a file of the task's folder.

    Args:
        task: its loss and scores, and how a prediction is read (`loss.py`).
        reader: from the files of a target to arrays (`reader.py`).
        section: what reports show, made of a reader (`show.py`).
        output: the files of a prediction, made of a section (`write.py`).
    """

    task: type[Task]
    reader: type[TargetReader]
    section: type[Section]
    output: type[PredictionFormat]
