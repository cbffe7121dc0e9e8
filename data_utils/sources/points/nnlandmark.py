"""Points in nnLandmark's JSON: {case: {name: [x, y, z]}}, voxels along the axes of the volume's own file.

A point that a case does not list is unknown. A predicted point is {"coordinates": [x, y, z], "likelihood": 0.9}, as in
nnLandmark's own predictions; this format adds `presence`.
"""

import json
from pathlib import Path
from typing import Any

from data_utils.image_io.volume_formats import STACK_SUFFIXES, VOLUME_SUFFIXES
from data_utils.image_io.volumes import volume_stem
from data_utils.sources.points.table import FIRST_CHANNEL, Certainty, PointTable, TableBuilder, number
from runtime.documents import MOST_BYTES_OF_DATA, read_json
from runtime.errors import DataError, one_line
from tasks.points import PRESENT, UNKNOWN

ALL_CASES = "all_landmarks_voxel.json"  # nnLandmark's name for the file in the folder of a data set
NAMES = (ALL_CASES, "prediction_all_landmark_voxel.json", "landmarks.json", "points.json")


def read_nnlandmark(file: Path) -> PointTable | None:
    """The points of a file; None if it holds something else."""
    try:
        content = read_json(file, (dict, list), MOST_BYTES_OF_DATA)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as JSON ({one_line(error)})") from error
    if not isinstance(content, dict) or not content or not all(map(_is_case, content.values())):
        return None
    builder = TableBuilder("nnlandmark", 3)
    for case, points in content.items():
        builder.add_image(str(file), case)
        for name, entry in points.items():
            location = f"{file}: {name} of {case}"
            coordinates = entry
            certainty = None
            if isinstance(entry, dict):
                coordinates = entry["coordinates"]
                if {"likelihood", "presence"} <= entry.keys():
                    certainty = Certainty(number(entry["likelihood"], location), number(entry["presence"], location))
            if coordinates is None:
                builder.add(str(file), case, name, UNKNOWN)
            elif len(coordinates) != 3:
                raise DataError(f"{location}: has {len(coordinates)} coordinates, expected three, in voxels")
            else:
                position = [number(side, location) for side in coordinates]
                builder.add(str(file), case, name, PRESENT, position, certainty)
    return builder.table() if builder.names else None


def _is_case(points: Any) -> bool:
    """Whether `points` are the points of a case."""
    if not isinstance(points, dict):
        return False
    for entry in points.values():
        coordinates = entry.get("coordinates", "") if isinstance(entry, dict) else entry
        if coordinates is not None and not isinstance(coordinates, list):
            return False
    return True


def write_nnlandmark(table: PointTable) -> str:
    """The content of a file; unknown points have no entry."""
    cases: dict[str, dict[str, Any]] = {}
    for row, image in enumerate(table.images):
        points: dict[str, Any] = {}
        for column, name in enumerate(table.names):
            coordinates = table.positions[row, column].tolist()
            if table.presence is not None:
                confidence, presence = table.certainty(row, column)
                points[name] = {"coordinates": coordinates, "likelihood": confidence, "presence": presence}
            elif table.states[row, column] == PRESENT:
                points[name] = coordinates
        cases[case_name(image)] = points
    return json.dumps(cases, indent=2) + "\n"


def case_name(image: str) -> str:
    """The case that a volume belongs to."""
    is_file = image.lower().endswith(VOLUME_SUFFIXES + STACK_SUFFIXES)
    stem = volume_stem(image) if is_file else image
    return stem.removesuffix(FIRST_CHANNEL)
