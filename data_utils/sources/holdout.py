"""The validation images of a data set that has no validation split: drawn by the seed, the same everywhere."""

import heapq
import os
import re
from dataclasses import fields

import numpy as np

from data_utils.config import OVERLAPPING, DataConfig
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.places import read_source_grid
from data_utils.sources.blocks import cut_blocks
from data_utils.sources.records import Records, StreamRows, select
from runtime.console import counted
from runtime.errors import DataError


def check_flags(config: DataConfig, validation: str | None) -> None:
    """Raises DataError for flags of a part to hold out that contradict each other, or a `validation` that is given."""
    flag = "--val-blocks" if config.val_blocks is not None else ""
    if config.fold is not None:
        flag = f"--fold {config.fold}"
    if flag and validation is not None:
        raise DataError(
            f"{flag} holds out a part of the training images, but {config.dataset} has {validation}; leave one of them"
            " out"
        )
    if config.val_blocks is not None and config.val_group is not None:
        raise DataError("--val-blocks and --val-group: both say what is held out together; give one of them")


def idle_flags(train: Records, val: Records, config: DataConfig) -> tuple[str, ...]:
    """A line for each flag that says something of another kind of data, and has no effect."""
    reasons: dict[str, str] = {}
    if train.rows is not val.rows and not train.is_stream:
        reasons = dict.fromkeys(("val_fraction", "val_group"), "the data set has validation images of its own")
    elif config.fold is not None:
        reasons["val_fraction"] = "--fold says how many images validate"
    if train.metadata.landmarks is None:
        reasons["absent"] = "the data are masks, and not points"
    else:
        of_masks = ("loss", "class_weights", "ignore_index", "outside", "mask_suffix", "label_column")
        reasons |= dict.fromkeys(of_masks, "the data are points, and not masks")
    if train.metadata.task == OVERLAPPING:
        reasons["outside"] = "classes that may overlap have no background"
    if train.rows.image_folders:
        reasons |= dict.fromkeys(("image_column", "mask_column"), "the images are files, and not cells of a table")
        reasons["dataset_config"] = "the images are files, and not a data set of the Hub"
        image = train[0]["image"]
        if train.dims == 2 and config.dims is None:
            reasons["spacing"] = "the data are images, and not volumes"
        elif isinstance(image, VolumeFile) and image.spacing is None:
            reasons["spacing"] = "files of this format hold the size of their voxels"
    lines: list[str] = []
    for field in fields(config):
        if field.name in reasons and getattr(config, field.name) != field.default:
            flag = field.name.replace("_", "-")
            lines.append(f"--{flag} has no effect: {reasons[field.name]}")
    return tuple(lines)


def hold_out(records: Records, config: DataConfig) -> tuple[Records, Records]:
    """Training and validation part in the order of `records`: at least one record in each, or the part of a fold.

    Records of one group stay together: slices of one volume must not be on both sides. The validation
    parts of the n folds of one `seed` are disjoint, hold all records together and about as many each. Raises DataError
    for fewer than two records, and for fewer groups than folds.
    """
    if len(records) < 2 and config.val_blocks is None:
        has_place = len(records) == 1 and read_source_grid(records[0]["image"]) is not None
        remedy = "; --val-blocks cuts the scene into several" if has_place else ""
        raise DataError(
            "at least 2 samples are needed, one to train on and one to validate on;"
            f" the data set has {len(records)}{remedy}"
        )
    things = f"{records.image_kind}s"
    if config.val_blocks is not None:
        records, groups = cut_blocks(records, config)
        things = "blocks"
    elif config.val_group is not None:
        groups = group_by_name(records, config.val_group)
        things = f"groups of {things}"
    else:  # the pages of a file are a group, unless all are pages of one
        groups = records.indices if records.indices.any() else np.arange(len(records))
        if np.bincount(groups).max() > 1:
            things = "files, whose pages stay together"
    sizes = np.bincount(groups)
    order = np.random.default_rng(config.seed).permutation(len(sizes))
    if config.chosen_fold is None:
        held_out = np.isin(groups, _first_groups(order, sizes, round(len(records) * config.val_fraction)))
    else:
        number, count = config.chosen_fold
        if len(sizes) < count:
            raise DataError(f"--fold {number}/{count}: there are only {len(sizes)} {things}, and each fold needs one")
        held_out = _fold_by_group(order, sizes, count)[groups] == number - 1
    return select(records, np.flatnonzero(~held_out)), select(records, np.flatnonzero(held_out))


def hold_out_shards(rows: StreamRows, fraction: float, seed: int) -> tuple[Records, Records]:
    """Training and validation part of a stream, whole files in each. Raises DataError for a single file."""
    files, file_by_group = np.unique(rows.groups[:, 0], return_inverse=True)
    if len(files) < 2:
        raise DataError(
            f"a stream of {counted(len(files), 'file')} has none to validate on; give it a validation split, or smaller"
            " shards"
        )
    sizes = np.bincount(file_by_group, weights=rows.group_sizes)
    order = np.random.default_rng(seed).permutation(len(files))
    held_out = np.isin(file_by_group, _first_groups(order, sizes, sizes.sum() * fraction))
    return Records(rows.subset(~held_out)), Records(rows.subset(held_out))


def _first_groups(order: np.ndarray, sizes: np.ndarray, wanted_images: float) -> np.ndarray:
    """The first groups of an order that together have enough images: at least one, and not all of them.

    Args:
        order: (G,) numbers of groups.
        sizes: (G,) images of each group, by its number.
    """
    enough = int(np.searchsorted(np.cumsum(sizes[order]), wanted_images)) + 1
    return order[: min(enough, len(order) - 1)]


def _fold_by_group(order: np.ndarray, sizes: np.ndarray, count: int) -> np.ndarray:
    """(G,) the fold of each group, from 0: the largest groups come first, each to the fold with the fewest records."""
    folds = [(0, index) for index in range(count)]
    fold_by_group = np.empty(len(sizes), np.int64)
    for index in order[np.argsort(-sizes[order], kind="stable")].tolist():
        records_so_far, smallest_fold = folds[0]
        fold_by_group[index] = smallest_fold
        heapq.heapreplace(folds, (records_so_far + int(sizes[index]), smallest_fold))
    return fold_by_group


def group_by_name(records: Records, pattern: str) -> np.ndarray:
    """(N,) the group of each record: names that agree in the first bracket of `--val-group`, or in the whole match.

    Raises DataError for what is no regular expression, or does not match, or puts all records into one group.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise DataError(f"--val-group {pattern!r} is no regular expression ({error})") from error
    bracket = 1 if expression.groups else 0
    number_by_text: dict[str, int] = {}
    numbers: list[int] = []
    for name in map(records.name, range(len(records))):
        match = expression.search(name)
        if match is None:
            raise DataError(f"--val-group {pattern!r} matches nothing in the name {name}")
        numbers.append(number_by_text.setdefault(match.group(bracket), len(number_by_text)))
    if len(number_by_text) < 2:
        raise DataError(f"--val-group {pattern!r} puts all samples into one group, {next(iter(number_by_text))!r}")
    return np.array(numbers)


def shared_images(train: Records, val: Records) -> tuple[str, ...]:
    """A line if images of one folder are listed in both splits."""
    if train.rows is val.rows or not set(train.rows.image_folders) & set(val.rows.image_folders):
        return ()
    train_names = {train.name(i) for i in range(len(train))}
    shared = [name for name in map(val.name, range(len(val))) if name in train_names]
    if not shared:
        return ()
    return (
        f"{counted(len(shared), val.image_kind)} of the {len(val)} that validate also train, such as {shared[0]}: the"
        " scores are too good; list each in one split",
    )


def leak_warnings(train: Records, val: Records) -> tuple[str, ...]:
    """A line if both parts, drawn from one sequence, may show the same thing."""
    if train.rows is not val.rows:
        return ()
    numbers = np.concatenate([train.indices, val.indices])
    if len(numbers) > 1 and not numbers.any():
        return (
            f"all {len(numbers)} images are pages of one file; neighbors of training pages validate, so the scores are"
            " too good: give a second file, or a validation split",
        )
    if len({below for _, below in train.rows.image_folders}) < 2:
        return ()
    train_folders = {os.path.dirname(train.name(i)) for i in range(len(train))}
    val_folders = {os.path.dirname(val.name(i)) for i in range(len(val))}
    shared = sorted(train_folders & val_folders - {""})
    if not shared or len(train_folders | val_folders) < 2:  # a folder of all cases is no group
        return ()
    pattern = "^(.*/)?" if "" in train_folders | val_folders else "^(.*/)"
    return (
        f"{counted(len(shared), 'folder')} with images that train and others that validate, such as {shared[0]}/: if a"
        " folder holds one patient, video or scene, the scores are too good; to keep the images of each folder"
        f" together, add --val-group '{pattern}'",
    )
