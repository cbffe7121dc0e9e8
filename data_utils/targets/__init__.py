"""Targets: what the network learns for each image, from files to arrays."""

from data_utils.class_names import NamedClasses, named_classes
from data_utils.config import DataConfig
from data_utils.mask_values import MAX_VALUES
from data_utils.sources.records import Records
from data_utils.targets.classes import ClassReader
from data_utils.targets.objects import ObjectReader
from data_utils.targets.overlapping import OverlapReader
from data_utils.targets.points import PointReader
from data_utils.targets.reader import TargetReader
from data_utils.targets.regions import RegionReader
from runtime.errors import DataError
from tasks.classes import Classes
from tasks.landmarks import Landmarks
from tasks.objects import Objects
from tasks.overlapping import Overlapping
from tasks.regions import Regions

TARGETS: dict[str, type[TargetReader]] = {
    Classes.name: ClassReader,
    Landmarks.name: PointReader,
    Objects.name: ObjectReader,
    Overlapping.name: OverlapReader,
    Regions.name: RegionReader,
}


def reader_type(config: DataConfig) -> type[TargetReader]:
    """The reader of the targets of a data set whose task is known."""
    assert config.task is not None
    return TARGETS[config.task]


def find_named_classes(records: Records, config: DataConfig) -> NamedClasses:
    """The classes that --classes or else the data set names, if any; none if points are learned.

    Raises DataError for more than a model may have.
    """
    if reader_type(config).takes_points:
        return ()
    classes = named_classes(config.classes, records.metadata.classes, config.outside_rule)
    if len({name for _, name in classes}) > MAX_VALUES:
        raise DataError(
            f"{config.dataset}: {len(classes)} classes, expected 2 to {MAX_VALUES}; choose some with --classes NAME,..."
        )
    return classes
