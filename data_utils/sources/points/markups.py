"""3D Slicer's points: `.mrk.json` and `.fcsv`, a file for each volume, in mm along the axes LPS or RAS.

A file belongs to the volume of its name. Slicer's colors and other settings of display are neither read nor written.
"""

import io
import json
from pathlib import Path
from typing import Any

from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.sources.annotations.documents import json_of, reading, text_of
from data_utils.sources.points.spaces import SIGNS
from data_utils.sources.points.table import ImagePoints, PointTable, number, read_note, read_position
from runtime.documents import parse_csv, text_lines, write_row
from runtime.errors import DataError

MARKUPS = ".mrk.json"
FCSV = ".fcsv"
SCHEMA = "https://raw.githubusercontent.com/slicer/slicer/master/Modules/Loadable/Markups/Resources/Schema/"
SCHEMA += "markups-schema-v1.0.3.json#"
OLD_SPACES = {"0": "RAS", "1": "LPS"}  # the names of the spaces in old files of .fcsv
STATES = {"defined": PRESENT, "missing": ABSENT}  # of points by their positionStatus, others are unknown
STATUSES = {PRESENT: "defined", ABSENT: "missing", UNKNOWN: "undefined"}
NOT_THERE = "# not there: "  # the prefix of a row of .fcsv for an absent point
COLUMNS = "id,x,y,z,ow,ox,oy,oz,vis,sel,lock,label,desc,associatedNodeID"


def read_markups(file: Path) -> PointTable | None:
    """The points of a .mrk.json; None if it holds none."""
    markups = json_of(file).get("markups")
    if not isinstance(markups, list) or not markups:
        return None
    markup = markups[0]
    points = markup.get("controlPoints") if isinstance(markup, dict) else None
    if len(markups) > 1 or not isinstance(points, list):
        raise DataError(f"{file}: holds {len(markups)} lists of points; keep one with controlPoints")
    entry = ImagePoints(str(file), file.name[: -len(MARKUPS)])
    for index, point in enumerate(points, 1):
        location = f"{file}: point {index}"
        if not isinstance(point, dict):
            raise DataError(f"{location} is no object")
        name = str(point.get("label") or point.get("id") or index)
        state = STATES.get(str(point.get("positionStatus", "defined")), UNKNOWN)
        certainty = read_note(point.get("description"), location)
        if certainty is not None and certainty.is_found != (state == PRESENT):
            certainty = None  # a person has placed or removed the point since it was predicted
        if certainty is not None:  # a predicted point has a position, present or not
            state = PRESENT
        if state != PRESENT:
            entry.add(name, state)
        elif point.get("position") is None:
            entry.add(name, UNKNOWN)
        else:
            entry.add(name, PRESENT, read_position(point["position"], 3, location), certainty)
    return PointTable("markups", 3, [entry], _space(str(markup.get("coordinateSystem", "LPS")), file))


def write_markups(table: PointTable) -> str:
    """The content of a .mrk.json with the points of one volume."""
    points: list[dict[str, Any]] = []
    for index, (name, point) in enumerate(table.points(0).items(), 1):
        fields: dict[str, Any] = {"id": str(index), "label": name, "positionStatus": STATUSES[point.state]}
        if point.position:
            fields["position"] = point.position
        if point.certainty:
            fields["description"] = point.note
        points.append(fields)
    markup = {"type": "Fiducial", "coordinateSystem": table.space, "coordinateUnits": "mm", "controlPoints": points}
    return json.dumps({"@schema": SCHEMA, "markups": [markup]}, indent=2) + "\n"


def read_fcsv(file: Path) -> PointTable:
    """The points of a .fcsv. Files without a coordinate system are old; they use RAS."""
    lines = [line.removeprefix(NOT_THERE) for line in text_lines(text_of(file))]
    comments = [line.lstrip("# ") for line in lines if line.startswith("#")]
    settings = dict(line.split(" = ", 1) for line in comments if " = " in line)
    titles = [title.strip() for title in settings.get("columns", COLUMNS).split(",")]
    if not {"x", "y", "z"} <= set(titles):
        raise DataError(f"{file}: its columns {', '.join(titles)} hold no x, y and z")
    # comments become empty lines
    content = "\n".join("" if line.startswith("#") else line for line in lines)
    with reading(file, "CSV"):
        rows = list(parse_csv(content))
    entry = ImagePoints(str(file), file.name[: -len(FCSV)])
    for index, (line, row) in enumerate(rows, 1):
        location = f"{file}, line {line}"
        cells = dict(zip(titles, row, strict=False))
        if not {"x", "y", "z"} <= cells.keys():
            raise DataError(f"{location} has {len(row)} cells, expected {len(titles)}; is the file cut off?")
        name = cells.get("label") or cells.get("id") or str(index)
        position = [number(cells[axis], location) for axis in "xyz"]
        entry.add(name, PRESENT, position, read_note(cells.get("desc"), location))
    return PointTable("fcsv", 3, [entry], _space(settings.get("CoordinateSystem", "RAS").strip(), file))


def write_fcsv(table: PointTable) -> str:
    """The content of a .fcsv with the points of one volume.

    Absent points have no row; absent points of a prediction are written as comments, which other programs ignore.
    """
    text = io.StringIO(newline="")
    text.write("# Markups fiducial file version = 4.11\n")
    text.write(f"# CoordinateSystem = {table.space}\n# columns = {COLUMNS}\n")
    for index, (name, point) in enumerate(table.points(0).items(), 1):
        if point.position:
            if point.state != PRESENT:
                text.write(NOT_THERE)
            position = map(repr, point.position)
            write_row(text, [index, *position, 0, 0, 0, 1, 1, 1, 0, name, point.note, ""])
    return text.getvalue()


def _space(name: str, file: Path) -> str:
    space = OLD_SPACES.get(name, name)
    if space not in SIGNS:
        raise DataError(f"{file}: coordinate system {name[:40]!r} is none of {', '.join(SIGNS)}")
    return space
