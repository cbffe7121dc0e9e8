"""Tasks: the meaning of the network's outputs, their loss, and their scores."""

from runtime.errors import ModelError
from runtime.values import NEWER_VERSION
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.objects import Objects
from tasks.overlapping import Overlapping
from tasks.regions import Regions
from tasks.task import Task
from unet.config import UNetConfig

TASKS: dict[str, type[Task]] = {
    Classes.name: Classes,
    Landmarks.name: Landmarks,
    Objects.name: Objects,
    Overlapping.name: Overlapping,
    Regions.name: Regions,
}


def task_name(config: UNetConfig) -> str:
    """The name of the task that a model was trained for."""
    return Classes.name if config.task is None else config.task["name"]


def task_of_model(config: UNetConfig) -> Task:
    """The task that a model was trained for. Raises ModelError if this version does not know it."""
    name = task_name(config)
    if name not in TASKS:
        raise ModelError(f"the model was trained for the task {name!r}, {NEWER_VERSION}")
    try:
        task = TASKS[name].from_config(config)
    except ModelError:  # its message names the damaged entry
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"the model's task {config.task} is damaged ({error!r}); use another copy") from error
    if task.outputs != config.num_classes:
        raise ModelError(f"the model's task {config.task} does not fit its {config.num_classes} outputs")
    return task
