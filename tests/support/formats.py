"""The formats of predictions, for tests: each from the reader of its masks or points."""

from data_utils.class_map import ClassMap
from data_utils.targets.reader import TargetReader
from tasks import KINDS, PredictionFormat
from tasks.classes.reader import ClassReader
from tasks.landmarks.loss import Landmarks
from tasks.landmarks.reader import PointReader
from tasks.landmarks.show import LandmarkSection
from tasks.landmarks.write import PointFormat
from tasks.objects.reader import ObjectReader
from tasks.overlapping.reader import OverlapReader
from unet.config import MaskValue


def format_of(reader: TargetReader) -> PredictionFormat:
    """The format of the predictions of a model that learned what this reader reads."""
    (kind,) = [kind for kind in KINDS if kind.reader is type(reader)]
    return kind.output(kind.section(reader))


def class_format(names: tuple[str, ...], values: tuple[MaskValue, ...]) -> PredictionFormat:
    """The format of classes of these names, by their mask values."""
    return format_of(ClassReader(ClassMap(names, values, None)))


def object_format(*classes: str) -> PredictionFormat:
    """The format of objects of these classes."""
    return format_of(ObjectReader(classes=tuple(enumerate(classes, 1))))


def overlap_format(*classes: str) -> PredictionFormat:
    """The format of these classes, which may overlap."""
    return format_of(OverlapReader(classes))


def point_format(task: Landmarks) -> PointFormat:
    """The format of the points of a task."""
    return PointFormat(LandmarkSection(PointReader(task, tuple(range(len(task.names))))))
