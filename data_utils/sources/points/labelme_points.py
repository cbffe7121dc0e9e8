"""labelme's shapes of type `point`: a JSON file for each image, whose labels are the names of the points.

A point that a file does not hold is unknown. A point that is predicted to be absent is stored under a key of our own.
"""

import json
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from data_utils.point_states import PRESENT
from data_utils.sources.annotations import labelme
from data_utils.sources.annotations.labelme import Contents, contents_of
from data_utils.sources.points.table import ImagePoints, PointTable, read_note, read_position, said_size
from runtime.errors import DataError

LAYOUT = "labelme"
VERSION = "5.5.0"  # the version of labelme that its files name


def find_shapes(root: Path, named_splits: Sequence[str], *, explicit: bool) -> dict[str, PointTable]:
    """Split -> its points, from the files of a folder; the name of an image is its path below `root`.

    Raises DataError if the files hold areas too, unless the points are asked for.
    """
    splits = labelme.find(root, named_splits)
    files_by_split = {split: labelme.read_folder(folders) for split, folders in splits.items()}
    all_files = chain.from_iterable(files.values() for files in files_by_split.values())
    all_contents = [contents for _, contents in all_files]
    if not any(contents.points for contents in all_contents):
        return {}
    if any(contents.areas for contents in all_contents) and not explicit:
        raise DataError(
            f"{root} holds points and other shapes of labelme; give --task landmarks for the points alone, or --task"
            " classes, in which a point is a disc"
        )
    tables: dict[str, PointTable] = {}
    for split, (images, folder) in splits.items():
        entries: list[ImagePoints] = []
        for file, (image, contents) in files_by_split[split].items():
            path = images / (image or os.path.splitext(file)[0])
            if image == "":
                path = folder / file
            if not contents.labels:
                if not labelme.is_labelme(folder / file):  # it belongs to something else
                    continue
                contents = contents_of(str(folder / file))  # it may be damaged
            entries.append(points_of(folder / file, os.path.relpath(path, root), contents))
        tables[split] = PointTable(LAYOUT, 2, entries)
    return tables


def read(file: Path) -> PointTable | None:
    """The points of a file; None if it holds something else."""
    if not labelme.is_labelme(file):
        return None
    return PointTable(LAYOUT, 2, [points_of(file, file.stem, contents_of(str(file)))])


def points_of(file: Path, image: str, contents: Contents) -> ImagePoints:
    """The points of a file, all of one image."""
    entry = ImagePoints(str(file), image, said_size(*contents.size))
    for index, label, positions, description in contents.points:
        location = f"{file}: shape {index}"
        position = positions[0] if isinstance(positions, list) and len(positions) == 1 else str(positions)
        entry.add(label, PRESENT, read_position(position, 2, location), read_note(description, location))
    return entry


def write(table: PointTable) -> str:
    """The content of a file with the points of one image."""
    (entry,) = table.entries
    present: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for name, point in table.points(0).items():
        if point.position:
            shape: dict[str, Any] = {"label": name, "points": [point.position], "group_id": None}
            shape |= {"description": point.note, "shape_type": "point", "flags": {}, "mask": None}
            shapes = present if point.state == PRESENT else others
            shapes.append(shape)
    content: dict[str, Any] = {"version": VERSION, "flags": {}, "shapes": present}
    content |= {"imagePath": entry.image, "imageData": None}
    if entry.size is not None:
        content["imageHeight"], content["imageWidth"] = entry.size
    if others:
        content[labelme.ABSENT] = others
    return json.dumps(content, indent=2) + "\n"
