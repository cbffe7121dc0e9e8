"""Points in TPS files, as tpsDig writes them: numbered points of one image after another.

LM=2            how many points follow, as lines of x and y
12.5 30
-1 -1           negative, or NA: this point is unknown
IMAGE=a.png     the image; if the line is missing, ID= names it
SCALE=0.01      length of a pixel, which is not read: points are in pixels

x counts from the center of the first column, y upward from the center of the lowest row. Curves (`CURVES=`, `POINTS=`)
are left out. Predictions are written in `COMMENT=`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from data_utils.point_states import PRESENT, UNKNOWN
from data_utils.sources.annotations.documents import reading
from data_utils.sources.points.spaces import PIXELS_UPWARD
from data_utils.sources.points.table import (
    Certainty,
    ImagePoints,
    Point,
    PointFileFormat,
    PointTable,
    number,
    read_note,
    written_note,
)
from runtime.documents import MOST_BYTES_OF_DATA, read_bytes, text_lines
from runtime.errors import DataError

MISSING_VALUES = ("na", "nan")
NOWHERE = "-1 -1"  # coordinates of an unknown point
MOST_POINTS = 10_000  # a damaged file may claim that an image has any number
SEPARATOR = "; "  # between the predictions of points in a comment
MISSING = Point(UNKNOWN, (), Certainty(0, 0))  # the prediction of a number without a point
Lines = Iterator[tuple[int, str]]


def read(file: Path) -> PointTable:
    """The points of a file."""
    with reading(file, "TPS"):
        content = read_bytes(file, MOST_BYTES_OF_DATA)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:  # older programs write names in the code page of their machine
        text = content.decode("latin-1")
    entries: dict[str, ImagePoints] = {}
    for points, fields, location in _specimens(text, file):
        image = fields.get("IMAGE") or fields.get("ID")
        if not image:
            raise DataError(f"{location}: its points have no IMAGE= and no ID=; is the file cut off?")
        points = _predictions(fields.get("COMMENT", ""), len(points), location) or points
        entry = entries.setdefault(image, ImagePoints(str(file), image))
        for index, point in enumerate(points, 1):
            entry.add(str(index), *point)
    if not entries:
        raise DataError(f"{file}: has no line LM=, which the points of an image begin with in TPS")
    return PointTable("tps", 2, list(entries.values()), PIXELS_UPWARD)


def _specimens(text: str, file: Path) -> Iterator[tuple[list[Point], dict[str, str], str]]:
    """The points of each image in a file, its other fields, and the line that it begins in."""
    lines: Lines = iter([(index, line) for index, line in enumerate(text_lines(text), 1) if line.strip()])
    points: list[Point] | None = None
    fields: dict[str, str] = {}
    start = ""
    for index, line in lines:
        title, _, value = (part.strip() for part in line.partition("="))
        field_name = title.upper()
        location = f"{file}, line {index}"
        if field_name == "LM3":
            raise DataError(f"{location}: LM3= lists points of volumes, and TPS is read for images only")
        if field_name == "LM":
            if points is not None:
                yield points, fields, start
            start = location
            fields = {}
            points = [_point(row, point_location) for row, point_location in _next_lines(lines, value, location)]
        elif field_name == "POINTS":  # a curve has points too
            list(_next_lines(lines, value, location))
        elif value:
            fields.setdefault(field_name, value)
    if points is not None:
        yield points, fields, start


def _next_lines(lines: Lines, count: str, location: str) -> Iterator[tuple[str, str]]:
    """The next lines, as many as `count` says, each with its place for error messages."""
    if not re.fullmatch(r"\d{1,5}", count) or int(count) > MOST_POINTS:
        raise DataError(f"{location}: {count[:40]!r} is no number of points, 0 to {MOST_POINTS:,}")
    for index in range(int(count)):
        _, line = next(lines, (0, ""))
        if not line or "=" in line:
            raise DataError(f"{location}: {count} points are to follow, but there are {index}; is the file cut off?")
        yield line, f"{location}: point {index + 1}"


def _point(line: str, location: str) -> Point:
    """The state and position of a point."""
    cells = line.split()
    if len(cells) != 2:
        raise DataError(f"{location}: has {len(cells)} coordinates, expected x and y")
    if any(cell.lower() in MISSING_VALUES for cell in cells):
        return Point(UNKNOWN)
    position = tuple(number(cell, location) for cell in cells)
    if min(position) < 0:
        return Point(UNKNOWN)
    return Point(PRESENT, position)


def _predictions(comment: str, count: int, location: str) -> list[Point]:
    """The points of a predicted image, of which there are so many; empty for other images."""
    points: list[Point] = []
    for text in comment.split(SEPARATOR):
        certainty = read_note(text, location)
        if certainty is None:
            return []
        position = tuple(number(cell, location) for cell in text.split()[:2])
        points.append(Point(PRESENT, position, certainty))
    return points if len(points) == count else []


def write(table: PointTable) -> str:
    """The content of a file; the names of points are their numbers, and points between them are unknown."""
    lines: list[str] = []
    last = max(map(int, table.names))
    for row, image in enumerate(table.images):
        by_name = dict(zip(table.names, table.points(row), strict=True))
        points = [by_name.get(str(name), MISSING) for name in range(1, last + 1)]
        lines.append(f"LM={last}")
        for point in points:
            position = [repr(max(0.0, side)) for side in point.position]
            lines.append(" ".join(position) if point.state == PRESENT else NOWHERE)
        lines += [f"IMAGE={image}", f"ID={row}"]
        if table.is_predicted:
            lines.append(f"COMMENT={SEPARATOR.join(map(_note, points))}")
    return "\n".join([*lines, ""])


def _note(point: Point) -> str:
    """The prediction for a point in words, also for a point that is predicted to be absent."""
    place = " ".join(map(repr, point.position)) or NOWHERE
    return f"{place} {written_note(point.certainty or MISSING.certainty)}"


FORMAT = PointFileFormat(".tps", True, read, write)
