"""A data set by its name: generated shapes, a folder, parquet and tar files, a saved data set, the Hub.

`FINDERS` are the layouts of a folder, in the order in which they are asked.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from data_utils.config import LANDMARKS, DataConfig
from data_utils.sources.annotations.documents import lines_of
from data_utils.sources.annotations.find import are_masks, find_annotated
from data_utils.sources.annotations.other_formats import check_formats
from data_utils.sources.annotations.world_polygons import find_polygons
from data_utils.sources.dicom import find_dicom
from data_utils.sources.folder import (
    TRAIN_SPLITS,
    VAL_SPLITS,
    DataFolder,
    NoFolderError,
    children,
    find_name,
    find_splits,
    keep_listings,
    list_folder,
    lone_split_files,
    names_in,
    spellings,
)
from data_utils.sources.hf_datasets import ask_hub, is_hub_id, is_saved, open_tables
from data_utils.sources.holdout import check_flags, hold_out, hold_out_shards
from data_utils.sources.label_files import read_label_files
from data_utils.sources.overlapping import (
    OVERLAPPING,
    as_objects,
    divide_by_channel,
    find_channels,
    find_class_files,
    find_class_folders,
)
from data_utils.sources.pairs import add_unpaired
from data_utils.sources.pictures import open_pictures
from data_utils.sources.places import read_places
from data_utils.sources.points.find import find_landmarks, other_csv_files
from data_utils.sources.records import Metadata, Records, SplitOpeners, select, split_openers
from data_utils.sources.shapes import CLASS_NAMES, VAL_FIRST, Shapes
from data_utils.sources.side_by_side import find_side_by_side
from data_utils.sources.streams.parquet import ParquetRows
from data_utils.sources.streams.remote import file_kind, find_files
from data_utils.sources.streams.webdataset import TarRows
from data_utils.sources.volumes import divide_into_slices, find_volumes, image_suffixes
from runtime.console import listing, say
from runtime.errors import DataError
from runtime.files import user_path
from runtime.redact import PASSWORD, printable

SHAPES_LENGTHS = (240, 48)
COMMENT = "#"  # the begin of a line of --exclude that names no image


def find_folder_pairs(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens its images and masks.

    Raises DataError if there are no folders of them, or only annotations of a format that is not read.
    """
    if not folder.has_masks:
        check_formats(folder.root)
    splits = folder.splits or find_splits(folder.root, folder.named_splits)
    return split_openers(splits, open_pictures, folder.config)


# each gives split -> a function that opens its records, empty if the folder has another layout
FINDERS: tuple[Callable[[DataFolder], SplitOpeners], ...] = (
    find_landmarks,
    find_dicom,
    find_class_folders,
    find_volumes,
    find_channels,
    find_polygons,
    find_annotated,
    find_class_files,
    find_side_by_side,
    find_folder_pairs,
)
WITHOUT_MASKS = (find_annotated, find_class_files, find_side_by_side)  # asked where no folders hold masks


def find_in_folder(root: Path, named_splits: Sequence[str], config: DataConfig) -> SplitOpeners:
    """Split -> a function that opens its records, by the first finder that knows the layout of the folder.

    Splits with unusual names are only those in `named_splits`. Raises NoFolderError, with what is wrong with CSV files
    that may be meant as points, if there is nothing to read.
    """
    splits: dict[str, tuple[Path, Path]] = {}
    with suppress(DataError):  # `find_folder_pairs` raises it again
        splits = find_splits(root, named_splits)
    has_masks = "labelstr" in children(root) or any(are_masks(*folders) for folders in splits.values())
    folder = DataFolder(root, named_splits, config, splits, has_masks, image_suffixes(root, config))
    try:
        finders = (find for find in FINDERS if not (has_masks and find in WITHOUT_MASKS))
        openers = next(filter(None, (find(folder) for find in finders)))
    except NoFolderError as error:
        lines = other_csv_files(root)
        if not lines:
            raise
        raise NoFolderError(f"{listing(lines, separator='; ')}; and {error}") from error
    if not (has_masks and splits) or config.task == LANDMARKS:  # points need no masks
        return openers
    unpaired = lone_split_files(splits, named_splits)
    if not unpaired:
        return openers
    options = (unpaired, config.allow_unpaired)
    return {split: partial(add_unpaired, root, open_split, *options) for split, open_split in openers.items()}


def load_records(config: DataConfig) -> tuple[Records, Records]:
    """Training and validation split of `config.dataset`.

    Without a validation split, one is drawn by `seed` from the training images: a share `val_fraction`, or the part
    that `fold` names. The split is the same on every file system. It keeps images together if their names agree in the
    part that `val_group` matches, or, with `val_blocks`, the windows of scenes that lie in one block. With `dims` 2 the
    slices of volumes are the images; all slices of a volume are in one split. Raises DataError for data that are
    missing, unpaired or ambiguous.
    """
    with keep_listings():
        labeled = read_label_files(_load_splits(config), user_path(config.dataset))
    train, val = map(partial(read_places, config=config), labeled)
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


def leave_out(train: Records, val: Records, file: Path) -> tuple[Records, Records]:
    """Both splits without the images that a file names, a name on each line.

    The images are left out when the splits are made, so that the other images stay in their splits. Raises DataError
    for a list that cannot be read, for names that the data set does not have, and if a split would have no image left.
    """
    if train.is_stream:
        raise DataError(f"--exclude {file}: the images of a stream are not known before training; leave the flag out")
    train_names = [train.shown_name(i) for i in range(len(train))]
    val_names = [val.shown_name(i) for i in range(len(val))]
    by_spelling = spellings([*train_names, *val_names])
    name_by_line = {line: find_name(line, by_spelling) for line in read_names(file)}
    unknown = sorted(line for line, name in name_by_line.items() if name is None)
    if unknown:
        name_list = listing(unknown)
        raise DataError(f"--exclude {file}: the data set has no {name_list}; take such lines out of the list")
    left_out = {name for name in name_by_line.values() if name is not None}
    of_both = sorted(left_out.intersection(train_names).intersection(val_names))
    if of_both:
        remark = "a training and a validation image have this name, both are left out"
        say(f"--exclude {file}: {listing(of_both)}: {remark}")

    def keep(records: Records, names: list[str], title: str) -> Records:
        indices = [i for i, name in enumerate(names) if name not in left_out]
        if not indices:
            raise DataError(f"--exclude {file}: leaves no {title} image; shorten the list")
        if len(indices) == len(names):
            return records
        return select(records, np.array(indices))

    return keep(train, train_names, "training"), keep(val, val_names, "validation")


def read_names(file: Path) -> set[str]:
    """The names in a list, without empty lines and lines that begin with #. Raises DataError if it cannot be read."""
    if not file.is_file():
        raise DataError(f"--exclude {file}: there is no such file")
    lines = map(str.strip, lines_of(file))
    return {printable(line) for line in lines if line and not line.startswith(COMMENT)}


def _load_splits(config: DataConfig) -> tuple[Records, Records]:
    """Both splits as the source has them; blocks to be held out are still in the first split."""
    dataset = config.dataset
    if dataset == "shapes":
        check_flags(config, "its own validation images")
        metadata = Metadata(tuple(enumerate(CLASS_NAMES)))
        val = Shapes(SHAPES_LENGTHS[1], first=VAL_FIRST)
        return Records(Shapes(SHAPES_LENGTHS[0]), metadata), Records(val, metadata)
    path = user_path(dataset)
    is_folder = path.is_dir()
    if config.val_blocks is not None and not is_folder:
        raise DataError(f"--val-blocks cuts images of a folder that have a place, but {dataset} is no folder")
    named_splits = [name for name in (config.train_split, config.val_split) if name]
    names: Iterable[str] = [path.name]
    if is_folder:
        folders, _ = list_folder(path)
        names = chain(names, *map(names_in, (path, *(path / name for name in folders))))
    shards = [name for name in names if name.endswith((".parquet", ".tar"))]
    if config.streaming or "://" in dataset or any(name.endswith(".tar") for name in shards):
        return load_stream(config, path, named_splits)
    if is_folder and not is_saved(path) and not shards:
        openers = find_in_folder(path, named_splits, config)
    else:
        openers = open_tables(dataset, config.dataset_config, config.image_column, config.mask_column)
    train_name, val_name = _choose(openers, config)
    train = divide_by_channel(openers[train_name](), config)
    check_flags(config, val_name and f"the validation split {val_name}")
    if config.val_blocks is not None:
        return train, select(train, np.zeros(0, np.int64))
    if val_name is not None:
        return train, divide_by_channel(openers[val_name](), config)
    return hold_out(train, config)


def load_stream(config: DataConfig, path: Path, named_splits: Sequence[str]) -> tuple[Records, Records]:
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
    splits = find_files(url, named_splits)
    train_name, val_name = _choose(splits, config)
    kind = TarRows if file_kind(splits[train_name][0]) == ".tar" else ParquetRows
    train = kind.open(splits[train_name], config.image_column, config.mask_column)
    if val_name is None:
        return hold_out_shards(train, config.val_fraction, config.seed)
    return Records(train), Records(kind.open(splits[val_name], config.image_column, config.mask_column))


def _choose(splits: Iterable[str], config: DataConfig) -> tuple[str, str | None]:
    """Names of the training and of the validation split, None if there is none: those of flags, else the usual ones.

    Raises DataError if there is no split to train on, or several that may be meant.
    """
    name_list = ", ".join(splits)
    chosen: list[str | None] = []
    for flag, named_split, usual_names in (
        ("--train-split", config.train_split, TRAIN_SPLITS),
        ("--val-split", config.val_split, VAL_SPLITS),
    ):
        matches = [name for name in splits if name in usual_names and name not in chosen]
        if named_split:  # folders are known by their names in lower case
            matches = [name for name in splits if name in (named_split, named_split.lower())]
            if not matches:
                raise DataError(f"{config.dataset} has no split {named_split}, only {name_list}")
        if len(matches) > 1:
            raise DataError(f"{config.dataset} has the splits {' and '.join(matches)}; choose one with {flag}")
        chosen.append(matches[0] if matches else None)
    train, val = chosen
    if train is None:
        raise DataError(f"{config.dataset} has no split train, only {name_list}; choose one with --train-split")
    return train, val
