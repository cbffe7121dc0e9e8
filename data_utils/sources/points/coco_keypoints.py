"""COCO's keypoints: a category names them, an annotation of one person or animal has x, y and v of each.

v is 0 where a keypoint is not labeled, and so unknown, 1 where it is hidden and 2 where it is seen. The format:
https://cocodataset.org/#format-data.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_utils.point_states import PRESENT, UNKNOWN
from data_utils.sources.annotations import coco
from data_utils.sources.annotations.coco import CocoFile, Entry, read_coco
from data_utils.sources.annotations.documents import keys_in
from data_utils.sources.points.table import (
    SEVERAL_TABLES_MESSAGE,
    Certainty,
    ImagePoints,
    PointTable,
    join_tables,
    number,
    read_certainty,
    said_size,
)
from runtime.errors import DataError

NAMES = r"(?:(?:person_)?keypoints|points|coco)(?:_(.+))?\.json|((?:train|val)[^.]*)\.json"
KEYPOINT_FILES = re.compile(NAMES)  # beside the files of objects, coco.FILES
KEYS = {b"images", b"keypoints"}  # of files that may hold points, whose categories name keypoints
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
        if not keys_in(path) >= KEYS:
            continue
        file = read_coco(path)
        table = to_table(file)
        holds_areas = any(entry.get("segmentation") for entry in file.all_objects)
        if table is not None and (explicit or paths is keypoint_files or not holds_areas):
            split = name.partition("/")[0]  # one of several files of a split is SPLIT/PART
            tables.setdefault(split, []).append(table)
    return {split: join_tables(parts) for split, parts in tables.items()}


def read(path: Path) -> PointTable | None:
    """The points of a file; None if it holds something else."""
    return to_table(read_coco(path)) if keys_in(path) >= KEYS else None


def to_table(file: CocoFile) -> PointTable | None:
    """The points of a file; None if none of its objects has keypoints."""
    used = {found["category_id"] for found in file.all_objects}
    named = [entry for key, entry in file.categories.items() if key in used and entry.get("keypoints")]
    named = named or _numbered_categories(file)
    if not named:
        return None
    if len(named) > 1:
        name_list = ", ".join(str(entry["name"]) for entry in named)
        raise DataError(f"{file.path}: {len(named)} categories have keypoints, {name_list}; keep one of them")
    (category,) = named
    names = category["keypoints"]
    if not isinstance(names, list) or len(set(map(str, names))) < len(names):
        raise DataError(f"{file.path}: category {category['name']!r} names its keypoints {str(names)[:60]}")
    names = [str(name) for name in names]
    entries: list[ImagePoints] = []
    for image in file.images:
        size = said_size(image.get("height"), image.get("width"))
        entry = ImagePoints(str(file.path), str(image["file_name"]), size)
        labeled: list[Entry] = []  # objects with a known or a predicted keypoint
        for found in file.objects[image["id"]]:
            keypoints = found.get("keypoints")
            is_named = found["category_id"] == category["id"]
            is_predicted = PREDICTED_KEYS[0] in found  # v is 0 where a point was not found, but its place stays
            # of too few numbers there is no v: they are a mistake, unless there are none
            if is_named and isinstance(keypoints, list) and (is_predicted or any(keypoints[2::3] or keypoints)):
                labeled.append(found)
        if len(labeled) > 1:
            raise DataError(
                f"{file.path}: {entry.image} has the keypoints of {len(labeled)} objects; {SEVERAL_TABLES_MESSAGE}"
            )
        for found in labeled:
            _add_keypoints(entry, names, found)
        entries.append(entry)
    return PointTable("coco", 2, entries, names=tuple(names))


def _numbered_categories(file: CocoFile) -> list[Entry]:
    """The categories of objects whose keypoints have no names, as of MMPose's faces, with 1, 2, ... as names."""
    numbers: dict[Any, list[int]] = {}
    for found in file.all_objects:
        keypoints = found.get("keypoints")
        if isinstance(keypoints, list) and any(keypoints):
            numbers[found["category_id"]] = list(range(1, len(keypoints) // 3 + 1))
    return [file.categories[key] | {"keypoints": names} for key, names in numbers.items() if key in file.categories]


def _add_keypoints(entry: ImagePoints, names: Sequence[str], found: Entry) -> None:
    """Add the keypoints of an object to those of its image."""
    location = f"{entry.file}: annotation {found['id']} of {entry.image}"
    keypoints = found["keypoints"]
    if len(keypoints) != 3 * len(names):
        raise DataError(f"{location} has {len(keypoints)} numbers, expected x, y and v of {len(names)} keypoints")
    certainties: list[Any] = [found.get(key) for key in PREDICTED_KEYS]
    if not all(isinstance(values, list) and len(values) == len(names) for values in certainties):
        certainties = [[None] * len(names)] * len(PREDICTED_KEYS)
    confidences, presences = certainties
    for index, (name, confidence, presence) in enumerate(zip(names, confidences, presences, strict=True)):
        x, y, visibility = keypoints[3 * index : 3 * index + 3]
        if not isinstance(visibility, int | float) or visibility not in VISIBILITIES:
            raise DataError(f"{location}: v of {name!r} is {str(visibility)[:40]}, expected 0, 1 or 2")
        position = (number(x, location), number(y, location))
        entry.add(name, VISIBILITIES[int(visibility)], position, read_certainty(confidence, presence, location))


def write(table: PointTable) -> str:
    """The content of a file, with an object for each image: its keypoints, and the box around the present ones."""
    images: list[Entry] = []
    annotations: list[Entry] = []
    for row, entry in enumerate(table.entries):
        image: Entry = {"id": row + 1, "file_name": entry.image}
        if entry.size is not None:
            image["height"], image["width"] = entry.size
        images.append(image)
        keypoints: list[float] = []
        points = list(table.points(row).values())
        for point in points:
            keypoints += [*(point.position or (0.0, 0.0)), SEEN if point.state == PRESENT else HIDDEN]
        present = [point.position for point in points if point.state == PRESENT]
        box = [0.0] * 4
        if present:
            low = np.min(present, axis=0)
            box = np.concatenate([low, np.max(present, axis=0) - low]).tolist()
        found: dict[str, Any] = {"id": row + 1, "image_id": row + 1, "category_id": 1, "iscrowd": 0}
        found |= {"keypoints": keypoints, "num_keypoints": len(present), "bbox": box, "area": box[2] * box[3]}
        if table.is_predicted:
            certainties = [point.certainty or Certainty(0, 0) for point in points]
            for key, values in zip(PREDICTED_KEYS, zip(*certainties, strict=True), strict=True):
                found[key] = list(values)
            found["score"] = float(np.mean([certainty.confidence for certainty in certainties]))
        annotations.append(found)
    category = CATEGORY | {"keypoints": list(table.names)}
    return json.dumps({"images": images, "annotations": annotations, "categories": [category]}, indent=1) + "\n"
