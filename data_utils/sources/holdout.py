"""The validation images of a data set that has no validation split: drawn by the seed, the same everywhere."""

import heapq
import os
import re

import numpy as np

from data_utils.image_io.placed_masks import read_source_grid
from data_utils.sources.records import Records, StreamRecords, select, with_sources
from runtime.console import listing
from runtime.errors import DataError

Groups = str | np.ndarray | None  # an expression that names have in common, or (N,) the number of each record's group


def hold_out(records: Records, fraction: float, seed: int, group: Groups) -> tuple[Records, Records]:
    """Training and validation part in the order of `records`; at least one record in each.

    Records of one group stay together: slices of one volume must not be on both sides. If `group` is a regular
    expression, the records of a group have names that agree in its first bracket, or in the whole match; if it is None,
    they are the pages of one file, unless all are.
    """
    if len(records) < 2:
        has_place = len(records) == 1 and read_source_grid(records[0]["image"]) is not None
        remedy = "; --val-blocks cuts the scene into several" if has_place else ""
        raise DataError(
            "at least 2 samples are needed, one to train on and one to validate on;"
            f" the data set has {len(records)}{remedy}"
        )
    groups = _groups(records, group)
    sizes = np.bincount(groups)
    order = np.random.default_rng(seed).permutation(len(sizes))
    held_out_groups = _first_groups(order, sizes, round(len(records) * fraction))
    return _divide(records, np.isin(groups, held_out_groups))


def _first_groups(order: np.ndarray, sizes: np.ndarray, wanted_images: float) -> np.ndarray:
    """The first groups of an order that together have enough images: at least one, and not all of them.

    Args:
        order: (G,) numbers of groups.
        sizes: (G,) images of each group, by its number.
    """
    enough = int(np.searchsorted(np.cumsum(sizes[order]), wanted_images)) + 1
    return order[: min(enough, len(order) - 1)]


def hold_out_fold(records: Records, fold: tuple[int, int], seed: int, group: Groups) -> tuple[Records, Records]:
    """Training and validation part of fold (k, n), the k-th of n from 1, in the order of `records`.

    The validation parts of the n folds of one `seed` are disjoint, hold all records together and about as many each;
    groups stay together as in `hold_out`. Raises DataError for fewer groups than folds.
    """
    number, count = fold
    groups = _groups(records, group)
    sizes = np.bincount(groups)
    if len(sizes) < count:
        kind = "volumes" if records.dims == 3 else "images"
        things = kind if group is None else f"groups of {kind}"
        if group is None and len(sizes) < len(records):
            things = "files, whose pages stay together"
        if isinstance(group, np.ndarray):
            things = "blocks"
        raise DataError(f"--fold {number}/{count}: there are only {len(sizes)} {things}, and each fold needs one")
    order = np.random.default_rng(seed).permutation(len(sizes))
    # the largest groups come first, and each goes to the fold that has the fewest records so far
    folds = [(0, index) for index in range(count)]
    fold_by_group = np.empty(len(sizes), np.int64)
    for index in order[np.argsort(-sizes[order], kind="stable")].tolist():
        records_so_far, smallest_fold = folds[0]
        fold_by_group[index] = smallest_fold
        heapq.heapreplace(folds, (records_so_far + int(sizes[index]), smallest_fold))
    return _divide(records, fold_by_group[groups] == number - 1)


def _divide(records: Records, held_out: np.ndarray) -> tuple[Records, Records]:
    return select(records, np.flatnonzero(~held_out)), select(records, np.flatnonzero(held_out))


def _groups(records: Records, pattern: Groups) -> np.ndarray:
    """(N,) number of each record's group, by first appearance; without a pattern each file is a group."""
    if isinstance(pattern, np.ndarray):
        return pattern
    if pattern is None:
        files = records.file_numbers()
        return files if files.any() else np.arange(len(records))
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise DataError(f"--val-group {pattern!r} is no regular expression ({error})") from error
    bracket = 1 if expression.groups else 0
    numbers: dict[str, int] = {}
    groups = np.empty(len(records), np.int64)
    for i in range(len(records)):
        name = records.name(i)
        match = expression.search(name)
        if match is None:
            raise DataError(f"--val-group {pattern!r} matches nothing in the name {name}")
        groups[i] = numbers.setdefault(match.group(bracket), len(numbers))
    if len(numbers) < 2:
        raise DataError(f"--val-group {pattern!r} puts all samples into one group, {next(iter(numbers))!r}")
    return groups


def leak_warnings(train: Records, val: Records) -> tuple[str, ...]:
    """A line if both parts, drawn from one sequence, may show the same thing."""
    sources = [id(records) for records in with_sources(train)]
    whole = next((records for records in with_sources(val) if id(records) in sources), None)
    if whole is None:
        return ()
    if len(whole) > 1 and not whole.file_numbers().any():
        return (
            f"all {len(whole)} images are pages of one file; neighbors of training pages validate, so the scores are"
            " too good: give a second file, or a validation split",
        )
    if len({below for _, below in whole.image_folders()}) < 2:
        return ()
    train_folders = {os.path.dirname(train.name(index)) for index in range(len(train))}
    val_folders = {os.path.dirname(val.name(index)) for index in range(len(val))}
    shared = sorted(train_folders & val_folders - {""})
    if not shared:
        return ()
    pattern = "^(.*/)?" if "" in train_folders | val_folders else "^(.*/)"
    return (
        f"images of one folder train and validate ({listing(shared)}); if a folder holds one patient or scene, keep it"
        f" together: --val-group '{pattern}'",
    )


def hold_out_shards(records: StreamRecords, fraction: float, seed: int) -> tuple[Records, Records]:
    """Training and validation part of a stream, whole files in each. Raises DataError for a single file."""
    files, file_by_group = np.unique(records.groups[:, 0], return_inverse=True)
    if len(files) < 2:
        raise DataError(
            f"a stream of {len(files)} file has no file to validate on; give it a validation split, or smaller shards"
        )
    sizes = np.bincount(file_by_group, weights=records.group_sizes)
    order = np.random.default_rng(seed).permutation(len(files))
    held_out = np.isin(file_by_group, _first_groups(order, sizes, sizes.sum() * fraction))
    return records.subset(~held_out), records.subset(held_out)
