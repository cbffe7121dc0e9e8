"""A data set by its name: generated shapes, a folder, parquet and tar files, a saved data set, the Hub."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from data_utils.config import DataConfig
from data_utils.sources.annotations.find import find_annotations, holds_masks
from data_utils.sources.annotations.other_formats import check_formats
from data_utils.sources.annotations.world_polygons import find_polygons
from data_utils.sources.bands import as_pictures, choose_bands, find_scenes
from data_utils.sources.blocks import hold_out_blocks
from data_utils.sources.excluded import leave_out
from data_utils.sources.folder import NoFolderError, find_splits
from data_utils.sources.hf_datasets import HFRecords, TableName, ask_hub, holds_tables, is_hub_id, load_tables
from data_utils.sources.holdout import check_flags, hold_out, hold_out_shards
from data_utils.sources.label_files import read_label_files
from data_utils.sources.overlapping import (
    OVERLAPPING,
    as_objects,
    divide_by_channel,
    find_class_folders,
    find_overlapping,
)
from data_utils.sources.pairs import open_pairs
from data_utils.sources.placed import with_places
from data_utils.sources.points.find import (
    are_annotations,
    check_task,
    find_points,
    lacks_masks,
    open_splits,
    other_csv_files,
)
from data_utils.sources.points.table import LANDMARKS, PointTable
from data_utils.sources.records import Records, SplitOpeners, select, select_all
from data_utils.sources.shapes import VAL_FIRST, Shapes
from data_utils.sources.side_by_side import find_side_by_side
from data_utils.sources.streams.parquet import ParquetRecords
from data_utils.sources.streams.remote import file_kind, find_files
from data_utils.sources.streams.webdataset import TarRecords
from data_utils.sources.volume_slices import divide_into_slices
from data_utils.sources.volumes import DESCRIPTION, find_volume_splits, open_cases, read_description
from runtime.console import listing
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
    train, val = read_label_files(_load_splits(config), user_path(config.dataset))
    if config.bands and not train.metadata.bands:
        train = choose_bands(train, config.bands)
        val = choose_bands(val, config.bands)
    if config.reads_places:
        train = with_places(train)
        val = with_places(val)
    elif train.dims == 2 and not train.is_stream and not train.metadata.bands:
        train = as_pictures(train)
        val = as_pictures(val)
    if config.val_blocks is not None:
        if not config.reads_places:
            raise DataError("--val-blocks cuts images by their place, which --no-place leaves out; give --place")
        train, val = hold_out_blocks(train, config)
    for records in (train, val):
        if config.dims == 3 and records.dims != 3:
            raise DataError(
                f"--dims 3: {config.dataset} holds images; volumes are NIfTI, NRRD, MHA, .npy or TIFF stacks"
            )
    if config.exclude:
        train, val = leave_out(train, val, Path(config.exclude))
    if config.task == OVERLAPPING and train.metadata.task != OVERLAPPING:
        return as_objects(train, config), as_objects(val, config)
    if config.dims == 2 and train.dims == 3:
        return divide_into_slices(train), divide_into_slices(val)
    return train, val


def _load_splits(config: DataConfig) -> tuple[Records, Records]:
    """Both splits as the source has them; blocks to be held out are still in the first split."""
    if config.dataset == "shapes":
        check_flags(config, "its own validation images")
        return Shapes(SHAPES_LENGTHS[0]), Shapes(SHAPES_LENGTHS[1], first=VAL_FIRST)
    path = user_path(config.dataset)
    if config.val_blocks is not None and not path.is_dir():
        raise DataError(f"--val-blocks cuts images of a folder that have a place, but {config.dataset} is no folder")
    if config.streaming or "://" in config.dataset or path.suffix == ".tar" or _holds_tars(path):
        return load_stream(config, path)
    is_folder = path.is_dir() and not holds_tables(path)
    openers = _find_in_folder(path, config) if is_folder else _find_tables(config)
    train_name, val_name = _choose(openers, config)
    train = divide_by_channel(openers[train_name](), config)
    check_flags(config, val_name and f"the validation split {val_name}")
    if config.val_blocks is not None:
        return train, select(train, np.zeros(0, np.int64))
    if val_name is not None:
        return train, divide_by_channel(openers[val_name](), config)
    return hold_out(train, config)


def _find_in_folder(path: Path, config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its records, with the first kind of targets that a folder has.

    Raises NoFolderError, with what is wrong with CSV files that may be meant as points, if there is nothing to read.
    """
    named_splits = _named_splits(config)
    try:
        points = look_for_points(path, named_splits, config)
        openers: SplitOpeners = {}
        if not points:  # points replace masks
            openers = _find_volumes(path, named_splits, config)
        return openers or open_folder(path, named_splits, config, points)
    except NoFolderError as error:
        openers = find_side_by_side(path, named_splits, config)
        if openers:
            return openers
        check_formats(path)
        lines = other_csv_files(path)
        if not lines:
            raise
        raise NoFolderError(f"{listing(lines, separator='; ')}; and {error}") from error


def _find_volumes(path: Path, named_splits: Sequence[str], config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its records, from a folder of volumes; empty for other folders."""
    splits, suffixes = find_volume_splits(path, named_splits, config)
    openers = find_class_folders(splits, suffixes, config) if _may_overlap(config) else {}
    if not openers:
        for name, (images, masks) in splits.items():
            openers[name] = partial(open_cases, images, masks, suffixes, config)
    return openers


def _find_tables(config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its records, from tables that `datasets` can read."""
    openers: SplitOpeners = {}
    for split, table in load_tables(config.dataset, config.dataset_config).items():
        name = TableName(config.dataset, config.dataset_config, split)
        openers[split] = partial(HFRecords, table, name, config.image_column, config.mask_column)
    return openers


def look_for_points(path: Path, named_splits: Sequence[str], config: DataConfig) -> dict[str, PointTable]:
    """Split -> its points, if they are asked for or the folder has no masks; else empty."""
    explicit = config.task == LANDMARKS
    if not explicit and config.task is not None:
        return {}
    if not explicit and not lacks_masks(path, named_splits):
        check_task(path)
        return {}
    points = find_points(path, named_splits, explicit=explicit)
    if explicit and not points and other_csv_files(path):
        raise DataError(f"--task {config.task}: {listing(other_csv_files(path), separator='; ')}")
    return points


def open_folder(
    path: Path, named_splits: Sequence[str], config: DataConfig, points: dict[str, PointTable]
) -> SplitOpeners:
    """Split -> a function that opens its records, from a folder of images with masks, annotations or points.

    The first of these readings that has files is used:

    1. points that are asked for, points of volumes, or points in files that hold areas in other data sets;
    2. masks of classes that may overlap;
    3. polygons in the world, if there are no masks and no points;
    4. other annotations, if there are no masks; raises DataError if there are points too;
    5. points;
    6. masks.

    Splits with unusual names are only those in `named_splits`.
    """
    point_openers = open_splits(path, points, config.absent, config.allow_unpaired)
    are_for_volumes = any(table.axes == 3 for table in points.values())
    if points and (config.task == LANDMARKS or are_for_volumes or are_annotations(points)):
        return point_openers
    if _may_overlap(config):
        overlapping = find_overlapping(path, named_splits, config)
        if overlapping:
            return overlapping
    has_masks = holds_masks(path, named_splits)
    if not has_masks and not points:
        polygons = find_polygons(path, named_splits, config)
        if polygons:
            return polygons
    if config.label_column:
        raise DataError(
            f"--label-column {config.label_column} is a column of polygons, but {path} holds no .geojson or .gpkg"
            " beside its images; leave it out"
        )
    annotated = None if has_masks else find_annotations(path, named_splits, config.allow_unpaired)
    if not has_masks and not points and annotated is None:
        check_formats(path)
    if points and annotated is not None:
        file = next(iter(points.values())).files[0]
        raise DataError(f"{path} holds annotations, and points in {file}; give --task classes or --task landmarks")
    if annotated is not None:
        return annotated
    return point_openers or _open_masks(path, named_splits, config)


def _may_overlap(config: DataConfig) -> bool:
    """Whether the task is, or may turn out to be, overlapping classes."""
    return config.task in (None, OVERLAPPING)


def _open_masks(path: Path, named_splits: Sequence[str], config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its records, from a folder of images and masks."""
    openers: SplitOpeners = {}
    for name, (images, masks) in find_splits(path, named_splits).items():
        openers[name] = partial(open_images, images, masks, config)
    return openers


def open_images(images: Path, masks: Path, config: DataConfig) -> Records:
    """Images and masks of one name; an image is a file, or a folder of its bands. nnU-Net names the classes beside."""
    scenes = find_scenes(images, masks, config)
    if scenes:
        return scenes
    records = open_pairs(images, masks, config)
    description = masks.parent / DESCRIPTION
    if masks.name.lower() == "labelstr" and description.exists():
        return select_all(records, classes=read_description(description).classes)
    return records


def load_stream(config: DataConfig, path: Path) -> tuple[Records, Records]:
    """Both splits of parquet or tar files that stay where they are; if there is one split, whole files are held out."""
    dataset = config.dataset
    if PASSWORD.search(dataset):
        raise DataError("the URL of --dataset was given with a password; give it in the environment (docs/data.md)")
    if config.fold is not None:
        raise DataError(f"--fold cannot be used: {dataset} is a stream; copy it to a folder, or leave --fold out")
    if path.exists():
        url = str(path)
    elif "://" in dataset:
        url = dataset
    elif is_hub_id(dataset):
        ask_hub(dataset)
        url = f"hf://datasets/{dataset}"
        if config.dataset_config:
            url += f"/{config.dataset_config}"
    else:
        raise DataError(f"--dataset {dataset} is not there; expected files, a folder, a URL or a Hub id owner/name")
    splits = find_files(url, _named_splits(config))
    train_name, val_name = _choose(splits, config)
    kind = TarRecords if file_kind(splits[train_name][0]) == ".tar" else ParquetRecords
    train = kind.open(splits[train_name], config.image_column, config.mask_column)
    if val_name is None:
        return hold_out_shards(train, config.val_fraction, config.seed)
    return train, kind.open(splits[val_name], config.image_column, config.mask_column)


def _named_splits(config: DataConfig) -> list[str]:
    return [name for name in (config.train_split, config.val_split) if name]


def _holds_tars(path: Path) -> bool:
    return any(path.glob("*.tar")) or any(path.glob("*/*.tar"))


def _choose(splits: Iterable[str], config: DataConfig) -> tuple[str, str | None]:
    """Names of the training and the validation split, None if there is none."""
    dataset = config.dataset

    def find(named_split: str | None, flag: str, usual_names: Sequence[str]) -> str | None:
        names = usual_names
        if named_split:
            # folders are known by their names in lower case
            names = (named_split, named_split.lower())
        matches = [name for name in splits if name in names]
        if named_split and not matches:
            raise DataError(f"{dataset} has no split {named_split}, only {', '.join(splits)}")
        if len(matches) > 1:
            raise DataError(f"{dataset} has the splits {' and '.join(matches)}; choose one with {flag}")
        return matches[0] if matches else None

    train = find(config.train_split, "--train-split", TRAIN_SPLITS)
    if train is None:
        raise DataError(f"{dataset} has no split train, only {', '.join(splits)}; choose one with --train-split")
    usual_names = [name for name in VAL_SPLITS if name != train]
    return train, find(config.val_split, "--val-split", usual_names)
