"""A data set from its path to the facts that a run needs: its tables, its task, its inspection."""

from dataclasses import replace

from data_utils.analysis.content import content_key
from data_utils.analysis.dataset_info import DatasetInfo, measure
from data_utils.analysis.findings import OpenedData, examine
from data_utils.config import DataConfig
from data_utils.sources.holdout import idle_flags, leak_warnings, shared_images
from data_utils.sources.load import load_records
from data_utils.targets.palettes import with_palette_colors
from runtime.errors import DataError
from tasks import TASKS
from tasks.classes.loss import Classes
from tasks.classes.reader import ClassReader
from tasks.find_task import find_named_classes, find_task


def open_data(config: DataConfig) -> OpenedData:
    """Find the records of both splits, and their task. Raises DataError for flags that do not suit them."""
    train, val = load_records(config)
    if train.dims == 3 and (config.image_size or config.scale not in (None, 1)):
        raise DataError(
            "--image-size and --scale are for images; volumes are resampled to the median of their spacings"
        )
    if train.dims == 2 and config.normalization:
        raise DataError(f"--normalization {config.normalization} is for volumes, and the data are images; leave it out")
    task, warnings = find_task(train, config)
    left_out = dict.fromkeys((*train.metadata.left_out, *val.metadata.left_out))
    warnings += tuple(f"left out: {line}" for line in left_out)
    warnings += idle_flags(train, val, config) + shared_images(train, val)
    if config.val_group is None and config.val_blocks is None:
        warnings += leak_warnings(train, val)
    trusts_values = config.task == Classes.name
    config = replace(config, task=task)
    targets = TASKS[task].reader
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
    data = open_data(config)
    if data.train.is_stream:
        lacks_classes = data.targets.has_classes and not data.classes
        if lacks_classes or not (config.image_size or config.crop_size):
            raise DataError("a stream is not read before training: give --classes, and --image-size or --crop-size")
    try:
        info = measure(examine(data))
    except DataError as error:
        raise DataError("; ".join([str(error), *data.warnings])) from error
    content = content_key([data.train, data.val])
    return replace(info, content=content, warnings=data.warnings + info.warnings)
