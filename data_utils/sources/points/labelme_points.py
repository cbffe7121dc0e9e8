"""labelme's shapes of type `point`: a JSON file for each image, whose labels are the names of the points.

A point that a file does not hold is unknown. A point that is predicted to be absent is stored under the key ABSENT,
which labelme keeps and does not show.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_utils.point_states import PRESENT
from data_utils.sources.annotations import labelme
from data_utils.sources.points.table import (
    ImagePoints,
    PointFileFormat,
    PointTable,
    read_note,
    read_position,
    said_size,
    written_note,
)
from runtime.errors import DataError

LAYOUT = "labelme"
ABSENT = "absent_shapes"
VERSION = "5.5.0"  # the version of labelme that its files name


def find_shapes(root: Path, named_splits: Sequence[str], *, explicit: bool) -> dict[str, PointTable]:
    """Split -> its points, from the files of a folder; the name of an image is its path below `root`.

    Raises DataError if the files hold areas too, unless the points are asked for.
    """
    splits = labelme.find(root, named_splits)
    contents_by_split = {split: labelme.read_contents(files) for split, (_, files) in splits.items()}
    all_contents: list[labelme.Contents] = []
    for split_contents in contents_by_split.values():
        all_contents += filter(None, split_contents.values())
    if not any(contents.points for contents in all_contents):
        return {}
    if any(contents.areas for contents in all_contents) and not explicit:
        raise DataError(
            f"{root} holds points and other shapes of labelme; give --task landmarks for the points alone, or --task"
            " classes, in which a point is a disc"
        )
    tables: dict[str, PointTable] = {}
    for split, folders in splits.items():
        images, files = folders
        contents_by_file = contents_by_split[split]
        entries: list[ImagePoints] = []
        for file, image in labelme.find_images(folders, labelme.images_by_stem(images), contents_by_file).items():
            if contents_by_file[file] is None and not labelme.is_labelme(files / file):
                continue  # the file belongs to something else
            path = images / (image or os.path.splitext(file)[0])
            if image == "":
                path = files / file
            entries.append(points_of(files / file, os.path.relpath(path, root)))
        tables[split] = PointTable(LAYOUT, 2, entries)
    return tables


def read(file: Path) -> PointTable | None:
    """The points of a file; None if it holds something else."""
    if not labelme.is_labelme(file):
        return None
    return PointTable(LAYOUT, 2, [points_of(file, file.stem)])


def points_of(file: Path, image: str) -> ImagePoints:
    """The points of a file, all of one image."""
    content = labelme.read_labelme(str(file))
    entry = ImagePoints(str(file), image, said_size(content.get("imageHeight"), content.get("imageWidth")))
    shapes = list(content["shapes"])
    absent_shapes = content.get(ABSENT)
    if isinstance(absent_shapes, list):
        shapes += absent_shapes
    for index, shape in enumerate(shapes, 1):
        location = f"{file}: shape {index}"
        if isinstance(shape, dict) and shape.get("shape_type") == "point":
            positions = shape.get("points")
            position = positions[0] if isinstance(positions, list) and len(positions) == 1 else str(positions)
            certainty = read_note(str(shape.get("description") or ""), location)
            entry.add(str(shape.get("label")), PRESENT, read_position(position, 2, location), certainty)
    return entry


def write(table: PointTable) -> str:
    """The content of a file with the points of one image."""
    (entry,) = table.entries
    shapes: list[dict[str, Any]] = []
    absent_shapes: list[dict[str, Any]] = []
    for name, point in zip(table.names, table.points(0), strict=True):
        if point.position:
            shape: dict[str, Any] = {"label": name, "points": [point.position], "group_id": None}
            shape |= {"description": written_note(point.certainty), "shape_type": "point", "flags": {}, "mask": None}
            if point.state == PRESENT:
                shapes.append(shape)
            else:
                absent_shapes.append(shape)
    content: dict[str, Any] = {"version": VERSION, "flags": {}, "shapes": shapes}
    content |= {"imagePath": entry.image, "imageData": None}
    if entry.size is not None:
        content["imageHeight"], content["imageWidth"] = entry.size
    if absent_shapes:
        content[ABSENT] = absent_shapes
    return json.dumps(content, indent=2) + "\n"


FORMAT = PointFileFormat(".json", False, read, write)
