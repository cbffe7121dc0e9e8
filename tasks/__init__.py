"""Tasks: what a network learns of an image, and all that follows from it. Each is a folder, and a line of `TASKS`."""

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.targets.reader import TargetReader
from runtime.errors import ModelError
from runtime.values import NEWER_VERSION
from tasks.classes.decode import ClassDecoder
from tasks.classes.loss import Classes
from tasks.classes.reader import ClassReader
from tasks.classes.show import ClassSection
from tasks.classes.write import ClassFormat
from tasks.decoder import Decoder
from tasks.kind import TaskKind
from tasks.landmarks.decode import LandmarkDecoder
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.reader import PointReader
from tasks.landmarks.show import LandmarkSection
from tasks.landmarks.write import PointFormat
from tasks.objects.decode import ObjectDecoder
from tasks.objects.loss import Objects
from tasks.objects.reader import ObjectReader
from tasks.objects.show import ObjectSection
from tasks.objects.write import ObjectFormat
from tasks.overlapping.decode import OverlapDecoder
from tasks.overlapping.loss import Overlapping
from tasks.overlapping.reader import OverlapReader
from tasks.overlapping.show import OverlapSection
from tasks.overlapping.write import OverlapFormat
from tasks.prediction_format import PredictionFormat
from tasks.regions.decode import RegionDecoder
from tasks.regions.loss import Regions
from tasks.regions.reader import RegionReader
from tasks.regions.show import RegionSection
from tasks.regions.write import RegionFormat
from tasks.section import Section
from tasks.task import Task
from unet.config import UNetConfig

TASKS: dict[str, TaskKind] = {
    Classes.name: TaskKind(Classes, ClassReader, ClassDecoder, ClassFormat, ClassSection),
    Landmarks.name: TaskKind(Landmarks, PointReader, LandmarkDecoder, PointFormat, LandmarkSection),
    Objects.name: TaskKind(Objects, ObjectReader, ObjectDecoder, ObjectFormat, ObjectSection),
    Overlapping.name: TaskKind(Overlapping, OverlapReader, OverlapDecoder, OverlapFormat, OverlapSection),
    Regions.name: TaskKind(Regions, RegionReader, RegionDecoder, RegionFormat, RegionSection),
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
        task = TASKS[name].task.from_config(config)
    except ModelError:  # its message names the damaged entry
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"the model's task {config.task} is damaged ({error!r}); use another copy") from error
    if task.outputs != config.num_classes:
        raise ModelError(f"the model's task {config.task} does not fit its {config.num_classes} outputs")
    return task


def reader_type(name: str) -> type[TargetReader]:
    """The reader of the targets of the task of this name."""
    return TASKS[name].reader


def new_decoder(task: Task) -> Decoder:
    """The decoder of a task's predictions."""
    return TASKS[task.name].decoder(task)


def new_format(config: UNetConfig) -> PredictionFormat:
    """The format in which the predictions of a model are written."""
    return TASKS[task_of_model(config).name].output.from_config(config)


def new_section(info: DatasetInfo) -> Section:
    """What reports show of the task of a data set."""
    assert info.config.task is not None
    return TASKS[info.config.task].section(info.reader)
