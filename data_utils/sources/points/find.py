"""Which points lie in a folder, and which images they belong to."""

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from data_utils.config import LANDMARKS
from data_utils.image_io.formats import PointSource, VolumeFile
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from data_utils.image_io.volumes import is_volume
from data_utils.sources.annotations.find import find_annotated
from data_utils.sources.annotations.labelme import LabelmeImage
from data_utils.sources.annotations.layout import describe_missing, find_file, find_listed
from data_utils.sources.folder import IMAGE_FOLDERS, DataFolder, children, files_in, wanted_splits
from data_utils.sources.pairs import FIRST_CHANNEL, open_rows, split_paths
from data_utils.sources.points import csv_tables, files, nnlandmark
from data_utils.sources.points.coco_keypoints import find_keypoints
from data_utils.sources.points.labelme_points import find_shapes
from data_utils.sources.points.markups import FCSV, MARKUPS
from data_utils.sources.points.table import EMPTY_CELL, PointTable, all_names, join_tables
from data_utils.sources.records import FileRow, LandmarkNames, Metadata, Records, Sources, SplitOpeners, split_openers
from data_utils.sources.side_by_side import find_side_by_side
from runtime.console import listing, say
from runtime.errors import DataError

FOLDERS = ("points", "landmarks", "markups", "fiducials")  # folders with a file of points for each volume
ALL_IMAGE_FOLDERS = (*IMAGE_FOLDERS, "imagestr", "data", "jpegimages")
ANNOTATIONS = ("coco", "labelme")  # formats that hold areas too
TABLES = (".csv", ".tps")
LABELED_DATA = "labeled-data"  # where DeepLabCut has a folder for each video
PREDICTED = "machinelabels"  # how DeepLabCut names files of points that its network has found
# what a table may leave out at the end of an image's name
ENDINGS = (*IMAGE_SUFFIXES, *VOLUME_SUFFIXES, *(FIRST_CHANNEL + suffix for suffix in VOLUME_SUFFIXES))
COORDINATES = {2: "images, which take x and y", 3: "volumes, which take x, y and z"}


class TableError(DataError):
    """Tables of points that cannot be read."""


def find_landmarks(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens the images of its points, if they are asked for or the folder has no masks.

    Raises DataError for points that are asked for and not understood, and where a flag must say what is meant: beside
    annotations or masks, and in nnLandmark's folders, whose labels are cubes around the points.
    """
    root = folder.root
    config = folder.config
    is_asked = config.task == LANDMARKS
    if config.task is not None and not is_asked:
        return {}
    if folder.has_masks and not is_asked:
        if (root / nnlandmark.ALL_CASES).is_file():
            raise DataError(
                f"{root} holds labels, and points in {nnlandmark.ALL_CASES}; give --task landmarks for the points, or"
                " --task classes for the labels"
            )
        return {}
    try:
        points = find_points(root, folder.named_splits, explicit=is_asked)
    except TableError as error:
        if is_asked or not find_annotated(folder):
            raise
        say(f"{error}: this table is left alone, since the folder holds annotations")
        return {}
    if is_asked and not points:
        lines = other_csv_files(root)
        if lines:
            raise DataError(f"--task {config.task}: {listing(lines, separator='; ')}")
    if points and not is_asked:
        is_sure = any(table.axes == 3 or table.layout in ANNOTATIONS for table in points.values())
        others = ""
        if _holds_masks(folder):
            others = "masks"
        elif not is_sure and find_annotated(folder):
            others = "annotations"
        if others:
            file = next(iter(points.values())).files[0]
            raise DataError(f"{root} holds {others}, and points in {file}; give --task classes or --task landmarks")
    locations = {split: (root, table) for split, table in points.items()}
    return split_openers(locations, open_points, config.absent, config.allow_unpaired)


def _holds_masks(folder: DataFolder) -> bool:
    """Whether masks lie beside images, also where they are no data set: several of one image."""
    try:
        return bool(find_side_by_side(folder))
    except DataError:
        return True


def find_points(root: Path, named_splits: Sequence[str], *, explicit: bool) -> dict[str, PointTable]:
    """Split -> its points, with the same names in all splits; nothing if no file in the folder lists points.

    A table stands in the folder of its split or is named after it; a flat folder is one split, `train`. Files of COCO
    and labelme lie where their files of areas lie; they are read for points if they hold nothing else, or if points are
    asked for (`explicit`).
    """
    try:
        tables = _find_tables(root, named_splits)
    except DataError as error:
        raise TableError(str(error)) from error
    readings = [
        tables,
        find_keypoints(root, named_splits, explicit=explicit),
        find_shapes(root, named_splits, explicit=explicit),
    ]
    readings = [splits for splits in readings if splits]
    if len(readings) > 1:
        first_files = [next(iter(splits.values())).files[0] for splits in readings]
        raise DataError(f"{root}: points are listed in {' and in '.join(first_files)}; keep one of the two")
    if not readings:
        return {}
    (splits,) = readings
    names = all_names(splits.values())
    return {split: table.with_names(names) for split, table in splits.items()}


def _find_tables(root: Path, named_splits: Sequence[str]) -> dict[str, PointTable]:
    """Split -> its points, from files that can only list points: of its folder, or train.csv, val.csv and the like.

    If there are none, all of the folder is the split train.
    """
    split_names = wanted_splits(named_splits)
    tables = {name: _table_in(folder) for name, folder in children(root).items() if name in split_names}
    if not any(tables.values()):
        tables = {}
        for file in _tables_in(root):
            name = file.stem.lower()
            if name in split_names and not tables.get(name):
                tables[name] = files.read(file)
    if not any(tables.values()):
        tables = {"train": _table_in(root)}
    return {split: table for split, table in tables.items() if table is not None}


def _table_in(folder: Path) -> PointTable | None:
    """The points from the files of a folder, all of one format."""
    tables = _read_all(_tables_in(folder))
    for name in nnlandmark.NAMES:
        table = nnlandmark.read(folder / name) if (folder / name).is_file() else None
        if table is not None and table.names:
            tables.append(table)
    if len(tables) > 1:
        names = [table.files[0] for table in tables]
        raise DataError(f"{folder}: {len(names)} files list points: {listing(names, separator='; ')}; keep one of them")
    if not tables:  # DeepLabCut has a table beside the frames of each video
        video_files = sorted(folder.glob(f"{LABELED_DATA}/*/*.csv")) or sorted(folder.glob("*/*.csv"))
        files_of_people = [file for file in video_files if not file.name.startswith(PREDICTED)]
        tables = [table for table in _read_all(files_of_people) if table.layout == "deeplabcut"]
    below = {"": folder, **children(folder)}
    for name in ("", *FOLDERS, *ALL_IMAGE_FOLDERS):
        if name in below and not tables:  # files of one volume each
            markups_files = sorted(below[name].glob(f"*{MARKUPS}"))
            fcsv_files = sorted(below[name].glob(f"*{FCSV}"))
            if markups_files and fcsv_files:
                raise DataError(f"{below[name]}: holds files {MARKUPS} and {FCSV}; keep one of the two kinds")
            tables = _read_all(markups_files or fcsv_files)
    return join_tables(tables) if tables else None


def _tables_in(folder: Path) -> list[Path]:
    """The files of a folder that may list the points of several images."""
    return [folder / name for name in files_in(folder, TABLES)]


def _read_all(candidates: Sequence[Path]) -> list[PointTable]:
    """The tables of points among files."""
    tables: list[PointTable] = []
    for file in candidates:
        table = None if file.name.startswith(".") else files.read(file)
        if table is not None:
            tables.append(table)
    return tables


def other_csv_files(path: Path) -> list[str]:
    """A line for each CSV file whose points are not read, the file itself or one of a folder: why they are not."""
    candidates = sorted([*path.glob("*.csv"), *path.glob("*/*.csv")]) if path.is_dir() else [path]
    lines: list[str] = []
    for file in candidates:
        if file.suffix.lower() == ".csv" and not file.name.startswith("."):
            try:
                csv_tables.read_table(file)
                if path not in (file, file.parent):
                    lines.append(f"{file} lists points; move it to {path}")
            except csv_tables.NoPointsError as error:
                lines.append(str(error))
    return lines


def open_points(root: Path, table: PointTable, absent: str | None, allow_unpaired: bool) -> Records:
    """The images of a table, or its volumes, wherever they are below `root`; and their points.

    `absent` is the meaning of an empty cell, as in `--absent`. Raises DataError for images that are not there, unless
    they are allowed, and for those that do not go with the points.
    """
    folders = _image_folders(root, table)
    location = Path(table.files[0])
    path_by_row, missing = find_listed(table.images, partial(_find_image, folders=folders), location)
    test_images = children(root).get("imagests")
    if test_images:  # nnLandmark's file lists these, too
        missing = [image for image in missing if _find_image(image, [str(test_images)]) is None]
    file_by_image = dict(zip(table.images, table.files, strict=True))
    unpaired = [f"{name}: listed in {Path(file_by_image[name]).name}, but the file is missing" for name in missing]
    paths = list(path_by_row.values())
    dims = {3 if is_volume(path) else 2 for path in paths}
    if len(dims) > 1:
        raise DataError(f"{location}: lists images and volumes; give a data set of each")
    if dims and dims != {table.axes}:
        kind = COORDINATES[dims.pop()]
        raise DataError(f"{location}: its points have {table.axes} coordinates, but it lists {kind}")
    folder, _ = split_paths(paths)
    files_folder, targets = split_paths([table.files[row] for row in path_by_row])
    whole = table.with_absence(absent)
    rows: list[FileRow] = []
    for target, (row, path) in zip(targets, path_by_row.items(), strict=True):
        names = tuple(os.path.relpath(file, folder) for file in _channel_files(path))
        points = {"positions": whole.positions[row].tolist(), "states": whole.states[row].tolist()}
        content = json.dumps({"size": table.entries[row].size, **points})
        rows.append(FileRow(names[0], names, (target,), entry=content.encode()))
    empty = int((table.states[list(path_by_row)] == EMPTY_CELL).sum()) if absent is None else 0
    landmarks = LandmarkNames(table.names, table.layout, table.space, empty)
    return open_rows(
        (folder, files_folder),
        rows,
        unpaired,
        Metadata(dims=table.axes, landmarks=landmarks, task=LANDMARKS),
        allow_unpaired,
        partial(point_sources, space=table.space, dims=table.axes),
        location=location,
        hint=partial(describe_missing, missing, folders, root),
    )


def point_sources(row: FileRow, space: str, dims: int) -> Sources:
    """An image, maybe inside a file of labelme, or a volume; and its points."""
    entry = json.loads(row.entry)
    positions = np.array(entry["positions"], np.float64).reshape(-1, dims)
    size = entry["size"] and (entry["size"][0], entry["size"][1])
    points = PointSource(row.targets[0], space, positions, np.array(entry["states"], np.int64), size)
    if dims == 3:
        return VolumeFile(row.images), points
    (image,) = row.images
    return LabelmeImage(image) if image.lower().endswith(".json") else image, points


def _channel_files(path: str) -> list[str]:
    """The files of a volume's channels, CASE_0000, CASE_0001 and so on; for other images the only file."""
    files_of_case = [path]
    stem, channel, ending = path.rpartition(FIRST_CHANNEL)
    if is_volume(path) and channel and "/" not in ending:
        while os.path.exists(f"{stem}_{len(files_of_case):04}{ending}"):
            files_of_case.append(f"{stem}_{len(files_of_case):04}{ending}")
    return files_of_case


def _image_folders(root: Path, table: PointTable) -> list[str]:
    """Folders that images may be in: beside the tables, in the data set, in folders of images and of the split."""
    parents: dict[Path, None] = {}
    splits: dict[str, None] = {}
    for file in map(Path, table.files):
        parents[file.parent] = None
        # the last word of a name may be the split, as in person_keypoints_train2017
        splits[file.stem.rpartition("_")[2].lower()] = None
    folders: list[Path] = []
    for parent in dict.fromkeys([*parents, *(parent.parent for parent in parents if parent != root), root]):
        below = children(parent)
        image_folders = [below[name] for name in ALL_IMAGE_FOLDERS if name in below]
        for folder in [*image_folders, parent]:
            inner = children(folder)
            folders += [inner[split] for split in splits if split in inner]
        folders += [*image_folders, parent]
    return list(map(str, dict.fromkeys(folders)))


def _find_image(image: str, folders: Sequence[str]) -> str | None:
    """The file of an image, whose extension the table may leave out."""
    endings = [""]
    if Path(image).suffix.lower() not in IMAGE_SUFFIXES and not is_volume(image):
        endings += ENDINGS
    paths = (find_file(image + ending, folders) for ending in endings)
    return next(filter(None, paths), None)


def read_truth(path: Path, absent: str) -> PointTable:
    """The points of a file, or of the files of a folder; raises DataError if there are none.

    Args:
        absent: the meaning of an empty cell, as in `--absent`.
    """
    tables = list(find_points(path, (), explicit=True).values()) if path.is_dir() else _read_all([path])
    if not tables:
        other_tables = other_csv_files(path)
        reasons = f"; {listing(other_tables, separator='; ')}" if other_tables else ""
        raise DataError(f"{path}: no file there lists points (docs/landmarks.md){reasons}")
    return join_tables(tables).with_absence(absent)
