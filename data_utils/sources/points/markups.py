"""3D Slicer's points: `.mrk.json` and `.fcsv`, a file for each volume, in mm along the axes LPS or RAS.

A file belongs to the volume of its name. Slicer's colors and other settings of display are neither read nor written.
"""

import io
import json
from pathlib import Path
from typing import Any

from data_utils.sources.points.spaces import SIGNS
from data_utils.sources.points.table import PointTable, TableBuilder, number, read_note, written_note
from runtime.documents import MOST_BYTES, TableWriter, parse_csv, read_bytes, read_json, text_lines
from runtime.errors import DataError, one_line
from tasks.points import ABSENT, PRESENT, UNKNOWN

MARKUPS = ".mrk.json"
FCSV = ".fcsv"
SCHEMA = "https://raw.githubusercontent.com/slicer/slicer/master/Modules/Loadable/Markups/Resources/Schema/"
SCHEMA += "markups-schema-v1.0.3.json#"
OLD_SPACES = {"0": "RAS", "1": "LPS"}  # the names of the spaces in old files of .fcsv
STATUSES = {PRESENT: "defined", ABSENT: "missing", UNKNOWN: "undefined"}
NOT_THERE = "# not there: "  # the prefix of a row of .fcsv for an absent point
COLUMNS = "id,x,y,z,ow,ox,oy,oz,vis,sel,lock,label,desc,associatedNodeID"


def stem_of(file: Path) -> str:
    """The name of the volume that a file belongs to."""
    for extension in (MARKUPS, FCSV):
        if file.name.lower().endswith(extension):
            return file.name[: -len(extension)]
    return file.stem


def read_markups(file: Path) -> PointTable | None:
    """The points of a .mrk.json; None if it holds none."""
    try:
        content = read_json(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as JSON ({one_line(error)})") from error
    markups = content.get("markups")
    if not isinstance(markups, list) or not markups:
        return None
    markup = markups[0]
    points = markup.get("controlPoints") if isinstance(markup, dict) else None
    if len(markups) > 1 or not isinstance(points, list):
        raise DataError(f"{file}: holds {len(markups)} lists of points; keep one with controlPoints")
    space = _space(str(markup.get("coordinateSystem", "LPS")), file)
    builder = TableBuilder("markups", 3)
    for index, point in enumerate(points, 1):
        location = f"{file}: point {index}"
        if not isinstance(point, dict):
            raise DataError(f"{location} is no object")
        name = str(point.get("label") or point.get("id") or index)
        status = point.get("positionStatus", "defined")
        coordinates = point.get("position")
        certainty = read_note(str(point.get("description", "")), location)
        if certainty is not None:  # a predicted point has a position, present or not
            status = "defined"
        if status == "missing":
            builder.add(str(file), stem_of(file), name, ABSENT)
        elif status != "defined" or coordinates is None:
            builder.add(str(file), stem_of(file), name, UNKNOWN)
        elif not isinstance(coordinates, list) or len(coordinates) != 3:
            raise DataError(f"{location}: position is {str(coordinates)[:60]}, expected three numbers")
        else:
            position = [number(side, location) for side in coordinates]
            builder.add(str(file), stem_of(file), name, PRESENT, position, certainty)
    return builder.table(space) if builder.names else None


def write_markups(table: PointTable) -> str:
    """The content of a .mrk.json with the points of one volume."""
    points: list[dict[str, Any]] = []
    for index, name in enumerate(table.names):
        state = int(table.states[0, index])
        point: dict[str, Any] = {"id": str(index + 1), "label": name, "positionStatus": STATUSES[state]}
        if state == PRESENT or table.presence is not None:
            point["position"] = table.positions[0, index].tolist()
        if table.presence is not None:
            point["description"] = written_note(table.certainty(0, index))
        points.append(point)
    markup = {"type": "Fiducial", "coordinateSystem": table.space, "coordinateUnits": "mm", "controlPoints": points}
    return json.dumps({"@schema": SCHEMA, "markups": [markup]}, indent=2) + "\n"


def read_fcsv(file: Path) -> PointTable | None:
    """The points of a .fcsv; None if it holds none. Files without a coordinate system are old; they use RAS."""
    try:
        text = read_bytes(file, MOST_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as text ({one_line(error)})") from error
    lines = text_lines(text)
    comments = [line.lstrip("# ") for line in lines if line.startswith("#")]
    settings = dict(line.split(" = ", 1) for line in comments if " = " in line)
    space = _space(settings.get("CoordinateSystem", "RAS").strip(), file)
    titles = [title.strip() for title in settings.get("columns", COLUMNS).split(",")]
    if not {"x", "y", "z"} <= set(titles):
        raise DataError(f"{file}: its columns {', '.join(titles)} hold no x, y and z")
    lines = [line.removeprefix(NOT_THERE) for line in lines]
    content = "\n".join("" if line.startswith("#") else line for line in lines)  # comments are empty lines
    try:
        rows = list(parse_csv(content))
    except ValueError as error:
        raise DataError(f"{file} cannot be read as CSV ({one_line(error)})") from error
    builder = TableBuilder("fcsv", 3)
    for index, (line, row) in enumerate(rows, 1):
        location = f"{file}, line {line}"
        if len(row) <= titles.index("z"):
            raise DataError(f"{location} has {len(row)} cells, expected {len(titles)}; is the file cut off?")
        cells = dict(zip(titles, row, strict=False))
        name = cells.get("label") or cells.get("id") or str(index)
        position = [number(cells[axis], location) for axis in "xyz"]
        builder.add(str(file), stem_of(file), name, PRESENT, position, read_note(cells.get("desc", ""), location))
    return builder.table(space) if builder.names else None


def write_fcsv(table: PointTable) -> str:
    """The content of a .fcsv with the points of one volume.

    Absent points have no row; absent points of a prediction are written as comments, which other programs ignore.
    """
    text = io.StringIO(newline="")
    text.write("# Markups fiducial file version = 4.11\n")
    text.write(f"# CoordinateSystem = {table.space}\n# columns = {COLUMNS}\n")
    writer = TableWriter(text)
    for index, name in enumerate(table.names):
        is_present = table.states[0, index] == PRESENT
        if not is_present and table.presence is None:
            continue
        x, y, z = (repr(float(side)) for side in table.positions[0, index])
        note = "" if table.presence is None else written_note(table.certainty(0, index))
        if not is_present:
            text.write(NOT_THERE)
        writer.writerow([index + 1, x, y, z, 0, 0, 0, 1, 1, 1, 0, name, note, ""])
    return text.getvalue()


def _space(name: str, file: Path) -> str:
    space = OLD_SPACES.get(name, name)
    if space not in SIGNS:
        raise DataError(f"{file}: coordinate system {name[:40]!r} is none of {', '.join(SIGNS)}")
    return space
