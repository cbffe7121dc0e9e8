"""Which task a data set is for."""

from data_utils.sources.records import Records
from runtime.errors import DataError
from tasks import TASKS
from tasks.classes import Classes
from tasks.landmarks import Landmarks


def find_task(named: str | None, records: Records, dataset: str) -> str:
    """The task that `--task` names, else the one that the records are for; DataError where they are for another."""
    holds_points = records.landmarks is not None
    usual = Landmarks.name if holds_points else Classes.name
    task = named or usual
    if holds_points != (task == Landmarks.name):
        have = "points" if holds_points else "masks"
        raise DataError(f"--task {task}: {dataset} holds {have}, which are for {usual}; leave the flag out")
    assert task in TASKS, task
    return task
