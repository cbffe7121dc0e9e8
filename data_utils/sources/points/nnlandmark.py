"""Points in nnLandmark's JSON: {case: {name: [x, y, z]}}, voxels along the axes of the volume's own file.

A point that a case does not list is unknown. A predicted point is {"coordinates": [x, y, z], "likelihood": 0.9}, as in
nnLandmark's own predictions; this format adds `presence`.
"""

import json
from pathlib import Path
from typing import Any

from data_utils.image_io.volume_formats import STACK_SUFFIXES, VOLUME_SUFFIXES
from data_utils.image_io.volumes import volume_stem
from data_utils.point_states import PRESENT, UNKNOWN
from data_utils.sources.annotations.documents import json_of
from data_utils.sources.pairs import FIRST_CHANNEL
from data_utils.sources.points.table import ImagePoints, PointTable, read_certainty, read_position

LAYOUT = "nnlandmark"
ALL_CASES = "all_landmarks_voxel.json"  # nnLandmark's name for the file in the folder of a data set
NAMES = (ALL_CASES, "prediction_all_landmark_voxel.json", "landmarks.json", "points.json")


def read(file: Path) -> PointTable | None:
    """The points of a file; None if it holds something else."""
    content = json_of(file, (dict, list))
    if not isinstance(content, dict) or not all(isinstance(points, dict) for points in content.values()):
        return None
    entries: list[ImagePoints] = []
    for case, points in content.items():
        entry = ImagePoints(str(file), case)
        for name, point in points.items():
            location = f"{file}: {name} of {case}"
            fields = point if isinstance(point, dict) else {"coordinates": point}
            coordinates = fields.get("coordinates", "")
            if coordinates is None:
                entry.add(name, UNKNOWN)
                continue
            if not isinstance(coordinates, list):
                return None
            certainty = read_certainty(fields.get("likelihood"), fields.get("presence"), location)
            entry.add(name, PRESENT, read_position(coordinates, 3, location), certainty)
        entries.append(entry)
    return PointTable(LAYOUT, 3, entries)


def write(table: PointTable) -> str:
    """The content of a file; unknown points have no entry."""
    cases: dict[str, dict[str, Any]] = {}
    for row, entry in enumerate(table.entries):
        points: dict[str, Any] = {}
        for name, point in table.points(row).items():
            if point.certainty is not None:
                confidence, presence = point.certainty
                points[name] = {"coordinates": point.position, "likelihood": confidence, "presence": presence}
            elif point.position:
                points[name] = point.position
        cases[case_name(entry.image)] = points
    return json.dumps(cases, indent=2) + "\n"


def case_name(image: str) -> str:
    """The case that a volume belongs to."""
    is_file = image.lower().endswith(VOLUME_SUFFIXES + STACK_SUFFIXES)
    stem = volume_stem(image) if is_file else image
    return stem.removesuffix(FIRST_CHANNEL)
