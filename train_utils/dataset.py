"""A data set from its path to the facts that a run needs: its tables, its task, its inspection."""

from dataclasses import replace

from data_utils.analysis.content import content_key
from data_utils.analysis.dataset_info import DatasetInfo, inspect_files, sample_stream
from data_utils.config import DataConfig
from data_utils.sources.holdout import leak_warnings
from data_utils.sources.load import load_records
from data_utils.targets.palettes import with_palette_colors
from runtime.errors import DataError
from tasks import reader_type
from tasks.classes.loss import Classes
from tasks.classes.reader import ClassReader
from tasks.find_task import find_named_classes, find_task, task_warnings


def load_dataset_info(config: DataConfig) -> DatasetInfo:
    """Find the data set, read every header, every mask and a sample of the images.

    The results are cached until a file changes. Raises DataError that names the files with problems; with
    `on_bad_sample` "skip" these files are noted instead.
    """
    train, val = load_records(config)
    warnings = task_warnings(train, config)
    if config.val_group is None and config.val_blocks is None:
        warnings += leak_warnings(train, val)
    insists = config.task == Classes.name
    task = find_task(train, config)
    config = replace(config, task=task)
    targets = reader_type(task)
    classes = find_named_classes(train, config)
    if targets is ClassReader:
        train, val, lines = with_palette_colors(train, val, classes)
        warnings += lines
    if not train.is_stream:
        try:
            info = inspect_files(train, val, targets, config, classes, insists=insists)
        except DataError as error:
            raise DataError("; ".join([str(error), *warnings])) from error
        return replace(info, content=content_key([train, val]), warnings=warnings + info.warnings)
    lacks_classes = targets.has_classes and not classes
    if lacks_classes or not (config.image_size or config.crop_size):
        raise DataError("a stream is not read before training: give --classes, and --image-size or --crop-size")
    info = sample_stream(train, val, targets, config, classes)
    return replace(info, content=content_key([train, val]))
