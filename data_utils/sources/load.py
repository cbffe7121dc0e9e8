"""A data set by its name: generated shapes, a folder, parquet and tar files, a saved data set, the Hub."""

import os
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from data_utils.config import DataConfig
from data_utils.sources.excluded import leave_out
from data_utils.sources.finders import find_in_folder
from data_utils.sources.folder import folders_in, names_in
from data_utils.sources.hf_datasets import HFRows, TableName, ask_hub, is_hub_id, is_saved, load_tables
from data_utils.sources.holdout import check_flags, hold_out, hold_out_shards
from data_utils.sources.label_files import read_label_files
from data_utils.sources.overlapping import OVERLAPPING, as_objects, divide_by_channel
from data_utils.sources.places import as_pictures, choose_bands, with_places
from data_utils.sources.records import Metadata, Records, SplitOpeners, select, split_openers
from data_utils.sources.shapes import CLASS_NAMES, VAL_FIRST, Shapes
from data_utils.sources.streams.parquet import ParquetRows
from data_utils.sources.streams.remote import file_kind, find_files
from data_utils.sources.streams.webdataset import TarRows
from data_utils.sources.volumes import divide_into_slices
from runtime.errors import DataError
from runtime.files import user_path
from runtime.redact import PASSWORD

SHAPES_LENGTHS = (240, 48)
TRAIN_SPLITS = ("train", "training")
VAL_SPLITS = ("val", "validation", "valid")


def load_records(config: DataConfig) -> tuple[Records, Records]:
    """Training and validation split of `config.dataset`.

    Without a validation split, one is drawn by `seed` from the training images: a share `val_fraction`, or the part
    that `fold` names. The split is the same on every file system. It keeps images together if their names agree in the
    part that `val_group` matches, or, with `val_blocks`, the windows of scenes that lie in one block. With `dims` 2 the
    slices of volumes are the images; all slices of a volume are in one split. Raises DataError for data that are
    missing, unpaired or ambiguous.
    """
    train, val = map(partial(_read_places, config=config), read_label_files(_load_splits(config), _path(config)))
    if config.val_blocks is not None:
        if not config.reads_places:
            raise DataError("--val-blocks cuts images by their place, which --no-place leaves out; give --place")
        train, val = hold_out(train, config)
    if config.dims == 3 and {train.dims, val.dims} != {3}:
        raise DataError(
            f"--dims 3: {config.dataset} holds images; volumes are NIfTI, NRRD, MHA, DICOM series, .npy or TIFF stacks"
        )
    if config.exclude:
        train, val = leave_out(train, val, Path(config.exclude))
    if config.task == OVERLAPPING and train.metadata.task != OVERLAPPING:
        return as_objects(train, config), as_objects(val, config)
    if config.dims == 2 and train.dims == 3:
        return divide_into_slices(train), divide_into_slices(val)
    return train, val


def _read_places(records: Records, config: DataConfig) -> Records:
    """The records with the bands that are asked for, and with or without their places in the world."""
    if config.bands and not records.metadata.bands:
        records = choose_bands(records, config.bands)
    if config.reads_places:
        return with_places(records)
    if records.dims == 2 and not records.is_stream and not records.metadata.bands:
        return as_pictures(records)
    return records


def _path(config: DataConfig) -> Path:
    return user_path(config.dataset)


def _load_splits(config: DataConfig) -> tuple[Records, Records]:
    """Both splits as the source has them; blocks to be held out are still in the first split."""
    if config.dataset == "shapes":
        check_flags(config, "its own validation images")
        metadata = Metadata(tuple(enumerate(CLASS_NAMES)))
        val = Shapes(SHAPES_LENGTHS[1], first=VAL_FIRST)
        return Records(Shapes(SHAPES_LENGTHS[0]), metadata), Records(val, metadata)
    path = _path(config)
    if config.val_blocks is not None and not path.is_dir():
        raise DataError(f"--val-blocks cuts images of a folder that have a place, but {config.dataset} is no folder")
    endings = _endings(path)
    if config.streaming or "://" in config.dataset or ".tar" in endings:
        return load_stream(config, path)
    is_folder = path.is_dir() and not is_saved(path) and ".parquet" not in endings
    openers = find_in_folder(path, _named_splits(config), config) if is_folder else _find_tables(config)
    train_name, val_name = _choose(openers, config)
    train = divide_by_channel(openers[train_name](), config)
    check_flags(config, val_name and f"the validation split {val_name}")
    if config.val_blocks is not None:
        return train, select(train, np.zeros(0, np.int64))
    if val_name is not None:
        return train, divide_by_channel(openers[val_name](), config)
    return hold_out(train, config)


def _endings(path: Path) -> set[str]:
    """The ending of a file, or those of all files in a folder and in the folders in it."""
    if not path.is_dir():
        return {path.suffix}
    names = chain.from_iterable(names_in(folder) for folder in (path, *folders_in(path)))
    return {os.path.splitext(name)[1] for name in names}


def _find_tables(config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its records, from tables that `datasets` can read."""
    splits: dict[str, tuple[object, TableName]] = {}
    for split, table in load_tables(config.dataset, config.dataset_config).items():
        splits[split] = table, TableName(config.dataset, config.dataset_config, split)
    return split_openers(splits, _open_table, config.image_column, config.mask_column)


def _open_table(*settings: Any) -> Records:
    return Records(HFRows(*settings))


def load_stream(config: DataConfig, path: Path) -> tuple[Records, Records]:
    """Both splits of parquet or tar files that stay where they are; if there is one split, whole files are held out."""
    dataset = config.dataset
    if PASSWORD.search(dataset):
        raise DataError("the URL of --dataset was given with a password; give it in the environment (docs/data.md)")
    if config.fold is not None:
        raise DataError(f"--fold cannot be used: {dataset} is a stream; copy it to a folder, or leave --fold out")
    url = str(path) if path.exists() else dataset
    if not path.exists() and "://" not in dataset:
        if not is_hub_id(dataset):
            raise DataError(f"--dataset {dataset} is not there; expected files, a folder, a URL or a Hub id owner/name")
        ask_hub(dataset)
        url = "/".join(filter(None, ("hf://datasets", dataset, config.dataset_config)))
    splits = find_files(url, _named_splits(config))
    train_name, val_name = _choose(splits, config)
    kind = TarRows if file_kind(splits[train_name][0]) == ".tar" else ParquetRows
    train = kind.open(splits[train_name], config.image_column, config.mask_column)
    if val_name is None:
        return hold_out_shards(train, config.val_fraction, config.seed)
    return Records(train), Records(kind.open(splits[val_name], config.image_column, config.mask_column))


def _named_splits(config: DataConfig) -> list[str]:
    return [name for name in (config.train_split, config.val_split) if name]


def _choose(splits: Iterable[str], config: DataConfig) -> tuple[str, str | None]:
    """Names of the training and the validation split, None if there is none."""
    train = _find_split(splits, config.train_split, "--train-split", TRAIN_SPLITS, config.dataset)
    if train is None:
        name_list = ", ".join(splits)
        raise DataError(f"{config.dataset} has no split train, only {name_list}; choose one with --train-split")
    usual_names = [name for name in VAL_SPLITS if name != train]
    return train, _find_split(splits, config.val_split, "--val-split", usual_names, config.dataset)


def _find_split(
    splits: Iterable[str], named_split: str | None, flag: str, usual_names: Sequence[str], dataset: str
) -> str | None:
    """The split that a flag names, or the only one with a usual name; None if there is none."""
    names = usual_names
    if named_split:
        names = (named_split, named_split.lower())  # folders are known by their names in lower case
    matches = [name for name in splits if name in names]
    if named_split and not matches:
        raise DataError(f"{dataset} has no split {named_split}, only {', '.join(splits)}")
    if len(matches) > 1:
        raise DataError(f"{dataset} has the splits {' and '.join(matches)}; choose one with {flag}")
    return matches[0] if matches else None
