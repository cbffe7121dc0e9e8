"""Where images and masks come from: generated shapes, folders, parquet files, saved data sets, the Hub.

A split is a sequence of records {"image": source, "mask": source, "name": str}; a source is anything that holds one
picture: a path, bytes, a `datasets` dict, a PIL image or an array.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from runtime.cache import digest
from runtime.errors import DataError
from data_utils.folders import find_splits, pair
from data_utils.shapes import VAL_FIRST, Shapes
from data_utils.streams import ParquetRows, find_files, hold_out_shards
from data_utils.tables import Rows, ask_hub, holds_tables, is_hub_id, load_tables
from data_utils.tars import TarRecords

SHAPES_LENGTHS = (240, 48)
TRAIN_SPLITS = ("train", "training")
VAL_SPLITS = ("val", "validation", "valid")


def load(
    dataset: str,
    *,
    seed: int,
    val_fraction: float,
    val_group: str | None,
    train_split: str | None,
    val_split: str | None,
    mask_suffix: str | None,
    image_column: str | None,
    mask_column: str | None,
    dataset_config: str | None,
    allow_unpaired: bool,
    streaming: bool = False,
) -> tuple[Sequence[dict], Sequence[dict]]:
    """Training and validation split of `shapes`, a folder, a .parquet file or a Hub id; flags as in train.py.

    Without a validation split, a share `val_fraction` of the training images, drawn by `seed`, becomes one: the same on
    every file system, and whole groups of names alike in what matches `val_group`.
    Raises DataError for what is missing, unpaired or ambiguous.
    """
    if dataset == "shapes":
        return Shapes(SHAPES_LENGTHS[0]), Shapes(SHAPES_LENGTHS[1], first=VAL_FIRST)
    path = Path(dataset).expanduser()
    if streaming or "://" in dataset or path.suffix == ".tar" or _holds_tars(path):
        return load_stream(
            dataset, path, dataset_config, train_split, val_split, image_column, mask_column, val_fraction, seed
        )
    splits: dict[str, Callable]
    if path.is_dir() and not holds_tables(path):
        folders = find_splits(path, [name for name in (train_split, val_split) if name])
        splits = {name: partial(pair, *both, mask_suffix, allow_unpaired) for name, both in folders.items()}
    else:
        tables = load_tables(dataset, path, dataset_config)
        splits = {name: partial(Rows, table, image_column, mask_column) for name, table in tables.items()}
    train_name, val_name = _choose(splits, train_split, val_split, dataset)
    train = splits[train_name]()
    return hold_out(train, val_fraction, seed, val_group) if val_name is None else (train, splits[val_name]())


def load_stream(
    dataset: str,
    path: Path,
    config: str | None,
    train_split: str | None,
    val_split: str | None,
    image_column: str | None,
    mask_column: str | None,
    val_fraction: float,
    seed: int,
) -> tuple[Sequence[dict], Sequence[dict]]:
    """Both splits of parquet or tar files that stay where they are; if there is one only, whole files are held out."""
    if path.exists():
        url = str(path)
    elif "://" in dataset:
        url = dataset
    elif is_hub_id(dataset):
        ask_hub(dataset)
        url = f"hf://datasets/{dataset}" + (f"/{config}" if config else "")
    else:
        raise DataError(f"--dataset {dataset} is not there; expected files, a folder, a URL or a Hub id owner/name")
    splits = find_files(url, [name for name in (train_split, val_split) if name])
    train_name, val_name = _choose(splits, train_split, val_split, dataset)
    kind = TarRecords if splits[train_name][0].endswith(".tar") else ParquetRows
    train = kind.open(splits[train_name], image_column, mask_column)
    if val_name is None:
        return hold_out_shards(train, val_fraction, seed)
    return train, kind.open(splits[val_name], image_column, mask_column)


def _holds_tars(path: Path) -> bool:
    return path.is_dir() and any(True for pattern in ("*.tar", "*/*.tar") for _ in path.glob(pattern))


def _choose(
    splits: Iterable[str], train_split: str | None, val_split: str | None, dataset: str
) -> tuple[str, str | None]:
    """Names of the training and the validation split, None where there is none."""

    def find(asked: str | None, flag: str, usual: Iterable[str]) -> str | None:
        # folders are found in any case
        found = [name for name in splits if name in ((asked, asked.lower()) if asked else usual)]
        if asked and not found:
            raise DataError(f"{dataset} has no split {asked}, only {', '.join(splits)}")
        if len(found) > 1:
            raise DataError(f"{dataset} has the splits {' and '.join(found)}; choose one with {flag}")
        return found[0] if found else None

    train = find(train_split, "--train-split", TRAIN_SPLITS)
    if train is None:
        raise DataError(f"{dataset} has no split train, only {', '.join(splits)}; choose one with --train-split")
    return train, find(val_split, "--val-split", [name for name in VAL_SPLITS if name != train])


class Part(Sequence):
    """The records of another sequence at `indices`, (N,) int64."""

    def __init__(self, records: Sequence[dict], indices: np.ndarray) -> None:
        self.records, self.indices = records, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> dict:
        return self.records[int(self.indices[i])]

    @property
    def digest(self) -> str | None:
        whole = self.records.digest
        return None if whole is None else digest(whole, self.indices.tobytes())


def hold_out(
    records: Sequence[dict], fraction: float, seed: int, group: str | None = None
) -> tuple[Sequence[dict], Sequence[dict]]:
    """Training and validation part in the order of `records`; at least one record in each.

    With a regular expression `group`, records whose names agree in its first bracket, or in all that it matches, stay
    together: slices of one volume must not be on both sides.
    """
    if len(records) < 2:
        raise DataError(f"{len(records)} image; at least 2 are needed, one to train on and one to validate")
    groups = np.arange(len(records)) if group is None else _groups(records, group)
    sizes = np.bincount(groups)
    order = np.random.default_rng(seed).permutation(len(sizes))
    wanted = min(max(1, round(len(records) * fraction)), len(records) - 1)
    # whole groups until there are enough, one of them at least left to train on
    count = min(int(np.searchsorted(np.cumsum(sizes[order]), wanted)) + 1, len(sizes) - 1)
    held_out = np.isin(groups, order[:count])
    return Part(records, np.flatnonzero(~held_out)), Part(records, np.flatnonzero(held_out))


def _groups(records: Sequence[dict], pattern: str) -> np.ndarray:
    """(N,) number of each record's group, by first appearance."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise DataError(f"--val-group {pattern!r} is no regular expression ({error})") from error
    numbers: dict[str, int] = {}
    groups = np.empty(len(records), np.int64)
    for i in range(len(records)):
        name = records[i]["name"]
        found = expression.search(name)
        if found is None:
            raise DataError(f"--val-group {pattern!r} matches nothing in the name {name}")
        groups[i] = numbers.setdefault(found.group(1 if expression.groups else 0), len(numbers))
    if len(numbers) < 2:
        raise DataError(f"--val-group {pattern!r} puts all images into one group, {next(iter(numbers))!r}")
    return groups
