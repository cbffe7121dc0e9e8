"""A data set from its path to the facts that a run needs: its tables, its task, its inspection."""

from dataclasses import replace
from typing import NamedTuple

from data_utils.analysis.content import content_key
from data_utils.analysis.dataset_info import DatasetInfo, inspect_files, sample_stream
from data_utils.class_names import NamedClasses
from data_utils.config import DataConfig
from data_utils.sources.holdout import leak_warnings
from data_utils.sources.load import load_records
from data_utils.sources.records import Records
from data_utils.targets.palettes import with_palette_colors
from data_utils.targets.reader import TargetReader
from runtime.errors import DataError
from tasks import reader_type
from tasks.classes.loss import Classes
from tasks.classes.reader import ClassReader
from tasks.find_task import find_named_classes, find_task, task_warnings


class OpenedData(NamedTuple):
    """A data set whose task is known, before its files are inspected.

    Args:
        config: with the task.
        classes: the classes that --classes or the data set names.
        trusts_values: whether a flag says that all values of masks are classes.
        warnings: lines on likely mistakes.
    """

    train: Records
    val: Records
    config: DataConfig
    targets: type[TargetReader]
    classes: NamedClasses
    trusts_values: bool
    warnings: tuple[str, ...]


def open_data(config: DataConfig) -> OpenedData:
    """Find the records of both splits, and their task. Raises DataError for flags that do not suit them."""
    train, val = load_records(config)
    if train.dims == 3 and (config.image_size or config.scale not in (None, 1)):
        raise DataError(
            "--image-size and --scale are for images; volumes are resampled to the median of their spacings"
        )
    if train.dims == 2 and config.normalization:
        raise DataError(f"--normalization {config.normalization} is for volumes, and the data are images; leave it out")
    warnings = task_warnings(train, config)
    if config.val_group is None and config.val_blocks is None:
        warnings += leak_warnings(train, val)
    trusts_values = config.task == Classes.name
    config = replace(config, task=find_task(train, config))
    assert config.task is not None
    targets = reader_type(config.task)
    classes = find_named_classes(train, config)
    if targets is ClassReader:
        train, val, lines = with_palette_colors(train, val, classes)
        warnings += lines
    return OpenedData(train, val, config, targets, classes, trusts_values, warnings)


def load_dataset_info(config: DataConfig) -> DatasetInfo:
    """Find the data set, read every header, every mask and a sample of the images.

    The results are cached until a file changes. Raises DataError that names the files with problems; with
    `on_bad_sample` "skip" these files are noted instead.
    """
    train, val, config, targets, classes, trusts_values, warnings = open_data(config)
    if train.is_stream:
        lacks_classes = targets.has_classes and not classes
        if lacks_classes or not (config.image_size or config.crop_size):
            raise DataError("a stream is not read before training: give --classes, and --image-size or --crop-size")
        info = sample_stream(train, val, targets, config, classes)
    else:
        try:
            info = inspect_files(train, val, targets, config, classes, trusts_values=trusts_values)
        except DataError as error:
            raise DataError("; ".join([str(error), *warnings])) from error
    return replace(info, content=content_key([train, val]), warnings=warnings + info.warnings)
