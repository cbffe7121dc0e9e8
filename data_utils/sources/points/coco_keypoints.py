"""COCO's keypoints: a category names them, an annotation of one person or animal has x, y and v of each.

v is 0 where a keypoint is not labeled, and so unknown, 1 where it is hidden and 2 where it is seen. The format:
https://cocodataset.org/#format-data.
"""

import json
import mmap
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from data_utils.sources.annotations import coco
from data_utils.sources.annotations.coco_file import CocoFile, read_coco
from data_utils.sources.annotations.coco_mask import Entry
from data_utils.sources.points.table import (
    SEVERAL_TABLES_MESSAGE,
    Certainty,
    PointTable,
    TableBuilder,
    join_tables,
    number,
    said_size,
)
from runtime.documents import open_regular
from runtime.errors import DataError
from tasks.points import PRESENT, UNKNOWN

NAMES = r"(?:(?:person_)?keypoints|points|coco)(?:_(.+))?\.json|((?:train|val)[^.]*)\.json"
KEYPOINT_FILES = re.compile(NAMES)  # beside the files of objects, coco.FILES
VISIBILITIES = {0: UNKNOWN, 1: PRESENT, 2: PRESENT}
# the v that is written for an absent point, and for a present one
HIDDEN = 0
SEEN = 2
PREDICTED_KEYS = ("keypoint_confidence", "keypoint_presence")  # further keys of a prediction
CATEGORY = {"id": 1, "name": "points", "supercategory": "", "skeleton": []}


def find_keypoints(root: Path, named_splits: Sequence[str], *, explicit: bool) -> dict[str, PointTable]:
    """Split -> its points, from the files of a folder.

    Unless they are asked for, files that also hold areas, or lie beside files of areas, are not read for points.
    """
    keypoint_files = coco.find(root, named_splits, KEYPOINT_FILES)
    object_files = coco.find(root, named_splits)
    paths = keypoint_files if keypoint_files and (explicit or not object_files) else object_files
    tables: dict[str, list[PointTable]] = {}
    for name, (_, path) in paths.items():
        if _mentions_keypoints(path):
            file = read_coco(path)
            table = to_table(file)
            if table is not None and (explicit or paths is keypoint_files or not _holds_areas(file)):
                split = name.partition("/")[0]  # one of several files of a split is SPLIT/PART
                tables.setdefault(split, []).append(table)
    return {split: join_tables(parts) for split, parts in tables.items()}


def read_keypoints(path: Path) -> PointTable | None:
    """The points of a file; None if it holds something else."""
    return to_table(read_coco(path)) if _mentions_keypoints(path) else None


def _mentions_keypoints(path: Path) -> bool:
    """Whether the word occurs in a file, which may be large; a file that cannot be read is reported by its reader."""
    try:
        with open_regular(path) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b'"keypoints"') >= 0 and content.find(b'"images"') >= 0
    except (OSError, ValueError):  # an empty file cannot be mapped
        return False


def _holds_areas(file: CocoFile) -> bool:
    """Whether any object of a file has an outline or a mask."""
    return any(entry.get("segmentation") for entry in chain.from_iterable(file.objects.values()))


def to_table(file: CocoFile) -> PointTable | None:
    """The points of a file; None if none of its objects has keypoints."""
    path = file.path
    names_by_category: dict[Any, list[str]] = {}
    used_categories = file.used_categories()
    for category_id, category in file.categories.items():
        names = category.get("keypoints")
        if names and category_id in used_categories:
            if not isinstance(names, list) or len(set(map(str, names))) < len(names):
                raise DataError(f"{path}: category {category['name']!r} names its keypoints {str(names)[:60]}")
            names_by_category[category_id] = [str(name) for name in names]
    if not names_by_category:
        return None
    if len(names_by_category) > 1:
        category_list = ", ".join(str(file.categories[category_id]["name"]) for category_id in names_by_category)
        raise DataError(
            f"{path}: {len(names_by_category)} categories have keypoints, {category_list}; keep one of them"
        )
    ((category_id, names),) = names_by_category.items()
    builder = TableBuilder("coco", 2)
    for image in file.images:
        name = str(image["file_name"])
        builder.add_image(str(path), name, said_size(image.get("height"), image.get("width")))
        entries = [entry for entry in file.objects.get(image["id"], []) if entry["category_id"] == category_id]
        labeled = [entry for entry in entries if _is_labeled(entry)]
        if len(labeled) > 1:
            raise DataError(f"{path}: {name} has the keypoints of {len(labeled)} objects; {SEVERAL_TABLES_MESSAGE}")
        for point in names:
            builder.names.setdefault(point, len(builder.names))
        for entry in labeled:
            _add_object(builder, names, name, entry, path)
    return builder.table()


def _is_labeled(entry: Entry) -> bool:
    """Whether an object has a known keypoint."""
    keypoints = entry.get("keypoints")
    return isinstance(keypoints, list) and any(keypoints[2::3])


def _add_object(builder: TableBuilder, names: list[str], image: str, entry: Entry, path: Path) -> None:
    """Add the keypoints of an object."""
    location = f"{path}: annotation {entry['id']} of {image}"
    keypoints = entry["keypoints"]
    if len(keypoints) != 3 * len(names):
        raise DataError(f"{location} has {len(keypoints)} numbers, expected x, y and v of {len(names)} keypoints")
    predictions = [entry.get(key) for key in PREDICTED_KEYS]
    is_predicted = all(isinstance(values, list) and len(values) == len(names) for values in predictions)
    for index, name in enumerate(names):
        x, y, visibility = keypoints[3 * index : 3 * index + 3]
        if not isinstance(visibility, int | float) or visibility not in VISIBILITIES:
            raise DataError(f"{location}: v of {name!r} is {str(visibility)[:40]}, expected 0, 1 or 2")
        certainty: Certainty | None = None
        if is_predicted:
            certainty = Certainty(*(number(values[index], location) for values in predictions if values is not None))
        position = (number(x, location), number(y, location))
        builder.add(str(path), image, name, VISIBILITIES[int(visibility)], position, certainty)


def write_keypoints(table: PointTable) -> str:
    """The content of a file, with an object for each image."""
    images: list[Entry] = []
    annotations: list[Entry] = []
    for row, image in enumerate(table.images):
        images.append({"id": row + 1, "file_name": image} | _written_size(table, row))
        annotations.append({"id": row + 1, "image_id": row + 1, "category_id": 1, "iscrowd": 0} | _object(table, row))
    category = CATEGORY | {"keypoints": list(table.names)}
    return json.dumps({"images": images, "annotations": annotations, "categories": [category]}, indent=1) + "\n"


def _written_size(table: PointTable, row: int) -> Entry:
    """Height and width of an image, if they are known."""
    size = table.source(row).size
    return {} if size is None else {"height": size[0], "width": size[1]}


def _object(table: PointTable, row: int) -> Entry:
    """The keypoints of an image, and the box around the present ones."""
    is_present = table.states[row] == PRESENT
    positions = table.positions[row]
    keypoints: list[float] = []
    for position, is_there in zip(positions, is_present.tolist(), strict=True):
        x, y = position.tolist() if is_there or table.presence is not None else (0.0, 0.0)
        keypoints += [x, y, SEEN if is_there else HIDDEN]
    box = [0.0] * 4
    if is_present.any():
        low = positions[is_present].min(axis=0)
        high = positions[is_present].max(axis=0)
        box = np.concatenate([low, high - low]).tolist()
    entry = {"keypoints": keypoints, "num_keypoints": int(is_present.sum()), "bbox": box, "area": box[2] * box[3]}
    if table.presence is not None and table.confidence is not None:
        values = (table.confidence[row], table.presence[row])
        entry |= {key: rows.tolist() for key, rows in zip(PREDICTED_KEYS, values, strict=True)}
        entry["score"] = float(table.confidence[row].mean())
    return entry
