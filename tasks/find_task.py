"""The task of a data set, by the content of its targets."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np

from data_utils.class_names import NamedClasses, named_classes
from data_utils.config import DataConfig
from data_utils.image_io.formats import VolumeFile, is_drawn
from data_utils.image_io.reader import open_source, read_mask
from data_utils.image_io.volumes import read_label_volume
from data_utils.image_io.windowed import strips
from data_utils.mask_values import MAX_VALUES
from data_utils.sources.records import Records, spread_indices
from runtime.cache import digest, load_or_compute
from runtime.errors import DataError, SettingsError
from tasks import TASKS
from tasks.classes.loss import Classes
from tasks.landmarks.loss import Landmarks
from tasks.objects.loss import Objects
from tasks.objects.reader import connected_pieces
from tasks.overlapping.loss import Regions

SAMPLED_MASKS = 20  # masks that are read
SAMPLED_VOLUMES = 4
FIRST_MASKS = 3  # masks that are read first: if these hold few values, no others are read
FEW_VALUES = 3  # values of a mask, with the background, that may just as well be classes
CONNECTED_SHARE = 0.9  # in such a share of the masks each number of objects is one piece
FEWEST_NUMBERS = 3  # the least number of different highest values in masks of objects
MOST_PIECES = 1.1  # pieces for each number, among all masks: classes lie in many more
AMBIGUOUS_READING = "classes or objects"
MANY_NUMBERS = 10  # the highest value of all, which few sets of classes reach


def find_task(records: Records, config: DataConfig) -> tuple[str, tuple[str, ...]]:
    """The task that is asked for, or the only one that the targets allow; else classes, unless they number objects.

    With it come warnings: a line if masks may number objects just as well as hold classes, and no flag decides.
    """
    if config.regions:
        if config.task not in (None, Regions.name):
            raise SettingsError(f"--regions is for --task {Regions.name}, and --task is {config.task}; leave one out")
        return Regions.name, ()
    if config.task == Landmarks.name and records.metadata.landmarks is None:
        raise DataError(f"--task {config.task}: {config.dataset} holds masks, and no points; leave the flag out")
    task = config.task or records.metadata.task or _reading(records, config)
    if task != AMBIGUOUS_READING:
        return task, ()
    warning = (
        "the numbers in the masks may count objects, since nearly each of them is one connected piece: give --task"
        " objects if they do, and --task classes if they are classes"
    )
    return Classes.name, (warning,)


def _reading(records: Records, config: DataConfig) -> str:
    """The task that the numbers in masks call for, or AMBIGUOUS_READING."""
    are_classes = config.classes or config.ignore_index or records.metadata.classes or records.is_stream
    if are_classes or not len(records) or is_drawn(records[0]["target"]):
        return Classes.name
    key = records.digest and digest("reading of masks", records.digest)
    return load_or_compute(key, partial(reading_of_masks, records))


def reading_of_masks(records: Records) -> str:
    """Objects, if every value is one connected piece, and the highest one differs between files.

    AMBIGUOUS_READING, if the highest value does not differ, since all images may have as many objects, or if a few
    objects are in pieces. Else classes: also if none of the first masks holds more than FEW_VALUES numbers.
    """
    first = range(min(FIRST_MASKS, len(records)))
    if all(len(np.unique(values)) <= FEW_VALUES for values in _masks(records, first)):
        return Classes.name
    count = SAMPLED_VOLUMES if records.dims == 3 else SAMPLED_MASKS
    highest = []
    connected_masks = 0
    all_numbers = 0
    all_pieces = 0
    for values in _masks(records, spread_indices(len(records), count)):
        if values.max() > 0:
            numbers = len(np.unique(values[values != 0]))
            pieces = int(connected_pieces(values).max())
            highest.append(int(values.max()))
            connected_masks += pieces == numbers
            all_numbers += numbers
            all_pieces += pieces
    if not highest or all_pieces > MOST_PIECES * all_numbers:
        return Classes.name
    are_connected = connected_masks >= CONNECTED_SHARE * len(highest)
    enough = max(FEWEST_NUMBERS, len(highest) / 2)
    # files have different numbers of objects
    are_counts = len(set(highest)) >= enough and max(highest) >= MANY_NUMBERS
    are_many = min(highest) > 255
    if are_connected and (are_counts or are_many):
        return Objects.name
    return AMBIGUOUS_READING


def _masks(records: Records, indices: Iterable[int]) -> Iterator[np.ndarray]:
    """The numbers in the masks that can be read and hold no colors; of a large mask only the first rows."""
    for index in indices:
        record = records[index]
        source = record["target"]
        with suppress(DataError):  # the error is reported where all masks are read
            if isinstance(source, VolumeFile):
                values = read_label_volume(source, record["name"])[0]
            else:
                with open_source(source) as mask:
                    rows = next(strips(mask)) if mask.is_large else None
                    values = read_mask(mask, record["name"], box=rows)
            if values.ndim == 2 or isinstance(source, VolumeFile):
                yield np.maximum(values, 0)


def find_named_classes(records: Records, config: DataConfig) -> NamedClasses:
    """The classes that --classes or else the data set names, if any; none if points are learned.

    Raises DataError for more than a model may have.
    """
    assert config.task is not None
    if TASKS[config.task].reader.takes_points:
        return ()
    classes = named_classes(config.classes, records.metadata.classes, config.outside_rule)
    if len({name for _, name in classes}) > MAX_VALUES:
        raise DataError(
            f"{config.dataset}: {len(classes)} classes, expected 2 to {MAX_VALUES}; choose some with --classes NAME,..."
        )
    return classes
