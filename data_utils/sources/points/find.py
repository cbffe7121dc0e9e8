"""Which points lie in a folder."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from data_utils.config import LANDMARKS
from data_utils.image_io.formats import IMAGE_SUFFIXES
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from data_utils.image_io.volumes import is_volume
from data_utils.sources.annotations.layout import describe_missing, find_file
from data_utils.sources.files import FileRecords
from data_utils.sources.folder import IMAGE_FOLDERS, DataFolder, children, wanted_splits
from data_utils.sources.pairs import FIRST_CHANNEL
from data_utils.sources.points import csv_tables, files, nnlandmark
from data_utils.sources.points.coco_keypoints import find_keypoints
from data_utils.sources.points.labelme_points import find_shapes
from data_utils.sources.points.markups import FCSV, MARKUPS
from data_utils.sources.points.nnlandmark import ALL_CASES
from data_utils.sources.points.table import PointTable, all_names, join_tables, open_points
from data_utils.sources.records import SplitOpeners
from runtime.console import listing
from runtime.errors import DataError

FOLDERS = ("points", "landmarks", "markups", "fiducials")  # folders with a file of points for each volume
MORE_IMAGE_FOLDERS = ("imagestr", "data", "jpegimages")
ANNOTATIONS = ("coco", "labelme")  # formats that hold areas too
LABELED_DATA = "labeled-data"  # where DeepLabCut has a folder for each video


def find_points(root: Path, named_splits: Sequence[str], *, explicit: bool) -> dict[str, PointTable]:
    """Split -> its points, with the same names in all splits; nothing if no file in the folder lists points.

    A table stands in the folder of its split or is named after it; a flat folder is one split, `train`. Files of COCO
    and labelme lie where their files of areas lie; they are read for points if they hold nothing else, or if points are
    asked for (`explicit`).
    """
    readings = [
        _find_tables(root, named_splits),
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


def choose_points(
    root: Path, named_splits: Sequence[str], task: str | None, *, has_masks: bool
) -> dict[str, PointTable]:
    """Split -> its points, if they are asked for or the folder has no masks; else empty. Raises DataError."""
    is_asked = task == LANDMARKS
    if task is not None and not is_asked:
        return {}
    if has_masks and not is_asked:
        check_task(root)
        return {}
    points = find_points(root, named_splits, explicit=is_asked)
    if is_asked and not points:
        lines = other_csv_files(root)
        if lines:
            raise DataError(f"--task {task}: {listing(lines, separator='; ')}")
    return points


def find_first_points(folder: DataFolder) -> SplitOpeners:
    """The openers of points that are asked for, of volumes, or in files that hold areas in other data sets."""
    is_first = folder.config.task == LANDMARKS
    for table in folder.points.values():
        is_first = is_first or table.axes == 3 or table.layout in ANNOTATIONS
    return find_any_points(folder) if is_first else {}


def find_any_points(folder: DataFolder) -> SplitOpeners:
    """Split -> a function that opens the images of its points."""
    return open_splits(folder.root, folder.points, folder.config.absent, folder.config.allow_unpaired)


def _find_tables(root: Path, named_splits: Sequence[str]) -> dict[str, PointTable]:
    """Split -> its points, from files that can only list points: of its folder, or train.csv, val.csv and the like.

    If there are none, all of the folder is the split train.
    """
    split_names = wanted_splits(named_splits)
    tables = {name: _table_in(folder) for name, folder in children(root).items() if name in split_names}
    if not any(tables.values()):
        tables = {}
        for file in sorted([*root.glob("*.csv"), *root.glob("*.tps")]):
            name = file.stem.lower()
            if name in split_names and not tables.get(name):
                tables[name] = files.read(file)
    if not any(tables.values()):
        tables = {"train": _table_in(root)}
    return {split: table for split, table in tables.items() if table is not None}


def _table_in(folder: Path) -> PointTable | None:
    """The points from the files of a folder, all of one format."""
    tables = _read_all(sorted([*folder.glob("*.csv"), *folder.glob("*.tps")]))
    for name in nnlandmark.NAMES:
        if (folder / name).is_file():
            tables += filter(None, [files.read_as(folder / name, nnlandmark.LAYOUT)])
    if len(tables) > 1:
        names = [table.files[0] for table in tables]
        raise DataError(f"{folder}: {len(names)} files list points: {listing(names, separator='; ')}; keep one of them")
    if not tables:  # DeepLabCut has a table beside the frames of each video
        video_files = sorted(folder.glob(f"{LABELED_DATA}/*/*.csv")) or sorted(folder.glob("*/*.csv"))
        tables = [table for table in _read_all(video_files) if table.layout == "deeplabcut"]
    if not tables:
        tables = _volume_tables(folder)
    return join_tables(tables) if tables else None


def _volume_tables(folder: Path) -> list[PointTable]:
    """The points from files with one volume each, beside the volumes or in a folder of their own."""
    below = children(folder)
    folders = [folder, *(below[name] for name in (*FOLDERS, *IMAGE_FOLDERS, *MORE_IMAGE_FOLDERS) if name in below)]
    for volume_folder in folders:
        files_by_kind = {kind: sorted(volume_folder.glob(f"*{kind}")) for kind in (MARKUPS, FCSV)}
        if all(files_by_kind.values()):
            raise DataError(f"{volume_folder}: holds files {MARKUPS} and {FCSV}; keep one of the two kinds")
        tables = _read_all([*files_by_kind[MARKUPS], *files_by_kind[FCSV]])
        if tables:
            return tables
    return []


def _read_all(candidates: Sequence[Path]) -> list[PointTable]:
    """The tables of points among files."""
    tables = [files.read(file) for file in candidates if not file.name.startswith(".")]
    return [table for table in tables if table is not None]


def other_csv_files(path: Path) -> list[str]:
    """For each CSV file that is no table of points, a line that says why: the file itself, or those of a folder."""
    candidates = sorted([*path.glob("*.csv"), *path.glob("*/*.csv")]) if path.is_dir() else [path]
    lines: list[str] = []
    for file in candidates:
        if file.suffix.lower() == ".csv" and not file.name.startswith("."):
            try:
                csv_tables.read_table(file)
            except csv_tables.NoPointsError as error:
                lines.append(str(error))
    return lines


def open_splits(root: Path, splits: Mapping[str, PointTable], absent: str | None, allow_unpaired: bool) -> SplitOpeners:
    """Split -> a function that opens its records."""
    return {split: partial(_open_split, root, table, absent, allow_unpaired) for split, table in splits.items()}


def _open_split(root: Path, table: PointTable, absent: str | None, allow_unpaired: bool) -> FileRecords:
    """The images of a table, wherever they are below `root`."""
    folders = _image_folders(root, table)
    test_images = children(root).get("imagests")
    rows: list[int] = []
    paths: list[str] = []
    unpaired: list[str] = []
    missing: list[str] = []
    for row, image in enumerate(table.images):
        path = _find_image(image, folders)
        if path is None and test_images and _find_image(image, [str(test_images)]):
            continue  # nnLandmark's file also lists the test images
        if path is None:
            missing.append(image)
            unpaired.append(f"{image}: listed in {Path(table.files[row]).name}, but the file is missing")
        else:
            rows.append(row)
            paths.append(path)
    location = Path(table.files[0])
    repeated = sorted(path for path, count in Counter(paths).items() if count > 1)
    if repeated:
        raise DataError(f"{location}: lists {len(repeated)} images more than once: {listing(repeated, separator='; ')}")
    kinds = {is_volume(path) for path in paths}
    if len(kinds) > 1:
        raise DataError(f"{location}: lists images and volumes; give a data set of each")
    dims = 3 if True in kinds else 2
    if kinds and table.axes != dims:
        kind = {2: "images, which take x and y", 3: "volumes, which take x, y and z"}[dims]
        raise DataError(f"{location}: its points have {table.axes} coordinates, but it lists {kind}")
    table = replace(table, entries=[table.entries[row] for row in rows])
    hint = partial(describe_missing, missing, folders, root)
    return open_points(table, paths, unpaired, location, absent, allow_unpaired, hint)


def _image_folders(root: Path, table: PointTable) -> list[str]:
    """Folders that images may be in: beside the tables, in the data set, in folders of images and of the split."""
    table_files = [Path(file) for file in dict.fromkeys(table.files)]
    parents = [file.parent for file in table_files]
    # the last word of a name may be the split, as in person_keypoints_train2017
    splits = dict.fromkeys(file.stem.rpartition("_")[2].lower() for file in table_files)
    folders: list[Path] = []
    for parent in dict.fromkeys([*parents, *(parent.parent for parent in parents), root]):
        below = children(parent)
        image_folders = [below[name] for name in (*IMAGE_FOLDERS, *MORE_IMAGE_FOLDERS) if name in below]
        for folder in [*image_folders, parent]:
            inner = children(folder)
            folders += [inner[split] for split in splits if split in inner]
        folders += [*image_folders, parent]
    return [str(folder) for folder in dict.fromkeys(folders)]


def _find_image(image: str, folders: Sequence[str]) -> str | None:
    """The file of an image, whose extension the table may leave out."""
    path = find_file(image, folders)
    if path is not None or Path(image).suffix.lower() in IMAGE_SUFFIXES or is_volume(image):
        return path
    endings = [*IMAGE_SUFFIXES, *VOLUME_SUFFIXES, *(FIRST_CHANNEL + suffix for suffix in VOLUME_SUFFIXES)]
    for ending in endings:
        path = find_file(image + ending, folders)
        if path is not None:
            return path
    return None


def check_task(root: Path) -> None:
    """Raises DataError for nnLandmark's folders: their labels are cubes around the points listed beside them."""
    if (root / ALL_CASES).is_file():
        raise DataError(
            f"{root} holds labels, and points in {ALL_CASES}; give --task landmarks for the points, or --task classes"
            " for the labels"
        )


def read_truth(path: Path, absent: str) -> PointTable:
    """The points of a file, or of the files of a folder; raises DataError if there are none.

    Args:
        absent: the meaning of an empty cell, as in `--absent`.
    """
    if path.is_dir():
        splits = find_points(path, (), explicit=True)
        table = join_tables(list(splits.values())) if splits else None
    else:
        tables = _read_all([path])
        table = tables[0] if tables else None
    if table is None:
        other_tables = other_csv_files(path)
        reasons = f"; {listing(other_tables, separator='; ')}" if other_tables else ""
        raise DataError(f"{path}: no file there lists points (docs/landmarks.md){reasons}")
    return table.with_absence(absent)
