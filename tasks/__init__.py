"""Tasks: what a network learns of an image, and all that follows from it. Each is a folder, and a name in `KINDS`.

A new task subclasses the classes that are imported here, and `data_utils.target.Target` and a reader of
`data_utils.targets.reader`.
"""

from runtime.errors import ModelError
from runtime.values import NEWER_VERSION
from tasks import classes, landmarks, objects, overlapping
from tasks.kind import TaskKind
from tasks.prediction_format import MaskFormat, PredictionFormat
from tasks.section import Section
from tasks.tables import Column
from tasks.task import Scores, Task
from unet.config import UNetConfig

__all__ = ["Column", "MaskFormat", "PredictionFormat", "Scores", "Section", "Task", "TaskKind"]

KINDS = (classes.KIND, landmarks.KIND, objects.KIND, overlapping.KIND, overlapping.REGIONS)
TASKS: dict[str, TaskKind] = {kind.task.name: kind for kind in KINDS}


def task_of_model(config: UNetConfig) -> Task:
    """The task that a model was trained for. Raises ModelError if this version does not know it."""
    name = classes.Classes.name if config.task is None else config.task["name"]
    if name not in TASKS:
        raise ModelError(f"the model was trained for the task {name!r}, {NEWER_VERSION}")
    try:
        task = TASKS[name].task.from_config(config)
    except ModelError:  # its message names the damaged entry
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"the model's task {config.task} is damaged ({error!r}); use another copy") from error
    if task.outputs != config.num_classes:
        raise ModelError(f"the model's task {config.task} does not fit its {config.num_classes} outputs")
    return task


def new_format(config: UNetConfig) -> PredictionFormat:
    """The format in which the predictions of a model are written."""
    kind = TASKS[task_of_model(config).name]
    return kind.output(kind.section(kind.reader.of_model(config)))
