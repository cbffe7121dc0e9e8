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
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from data_utils.point_states import PRESENT, UNKNOWN
from data_utils.sources.annotations.documents import reading
from data_utils.sources.points.spaces import PIXELS_UPWARD
from data_utils.sources.points.table import (
    Certainty,
    ImagePoints,
    Point,
    PointTable,
    number,
    read_note,
    with_point,
)
from runtime.documents import MOST_BYTES_OF_DATA, read_bytes, text_lines
from runtime.errors import DataError

MISSING_VALUES = ("na", "nan")
FIRST_LINE = re.compile(r"LM\s*=", re.IGNORECASE)
NOWHERE = "-1 -1"  # coordinates of an unknown point
SEPARATOR = "; "  # between the predictions of points in a comment
MISSING = Point(UNKNOWN, (), Certainty(0, 0))  # the prediction of a number without a point


def read(file: Path) -> PointTable:
    """The points of a file."""
    with reading(file, "TPS"):
        content = read_bytes(file, MOST_BYTES_OF_DATA)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:  # older programs write names in the code page of their machine
        text = content.decode("latin-1")
    lines = [(number, line.strip()) for number, line in enumerate(text_lines(text), 1) if line.strip()]
    starts = [index for index, (_, line) in enumerate(lines) if FIRST_LINE.match(line)]
    if not starts:
        raise DataError(f"{file}: has no line LM=, which the points of an image begin with in TPS")
    entries: dict[str, ImagePoints] = {}
    for start, end in pairwise([*starts, len(lines)]):
        _add_specimen(entries, lines[start:end], file)
    return PointTable("tps", 2, list(entries.values()), PIXELS_UPWARD)


def _add_specimen(entries: dict[str, ImagePoints], numbered_lines: Sequence[tuple[int, str]], file: Path) -> None:
    """Add the points of an image: how many there are, a line for each, and fields, between which curves may stand."""
    numbers, lines = zip(*numbered_lines, strict=True)
    location = f"{file}, line {numbers[0]}"
    count = lines[0].partition("=")[2].strip()
    rows = list(takewhile(lambda line: "=" not in line, lines[1:]))
    if count != str(len(rows)):
        raise DataError(
            f"{location}: {count[:40]!r} points are to follow, but there are {len(rows)}; is the file cut off?"
        )
    fields: dict[str, str] = {}
    for line in lines[len(rows) + 1 :]:
        title, _, value = line.partition("=")
        if value.strip():
            fields.setdefault(title.strip().upper(), value.strip())
    image = fields.get("IMAGE") or fields.get("ID")
    if not image:
        raise DataError(f"{location}: its points have no IMAGE= and no ID=; is the file cut off?")
    notes = fields.get("COMMENT", "").split(SEPARATOR)
    if len(notes) != len(rows):
        notes = [""] * len(rows)
    entry = entries.setdefault(image, ImagePoints(str(file), image))
    for index, (row, note) in enumerate(zip(rows, notes, strict=True), 1):
        point_location = f"{file}, line {numbers[index]}: point {index}"
        position = _read_row(row, point_location)
        certainty = read_note(note, location)
        if certainty is not None:
            predicted = _read_row(" ".join(note.split()[:2]), point_location)
            if row == _row_of(predicted, certainty.is_found):
                position = predicted  # the row has no place of an absent point
            else:
                certainty = None  # a person has corrected the point
        is_known = bool(position) and min(position) >= 0
        entry.add(str(index), PRESENT if is_known else UNKNOWN, position, certainty)


def _read_row(row: str, location: str) -> list[float]:
    """The coordinates of a point, none if they are missing."""
    cells = row.split()
    if len(cells) != 2:
        raise DataError(f"{location}: has {len(cells)} coordinates, expected x and y")
    if any(cell.lower() in MISSING_VALUES for cell in cells):
        return []
    return [number(with_point(cell), location) for cell in cells]


def _row_of(position: Sequence[float], is_there: bool) -> str:
    """The row of a point: programs take negative coordinates for a missing one."""
    return " ".join(repr(max(0.0, side)) for side in position) if is_there else NOWHERE


def write(table: PointTable) -> str:
    """The content of a file; the names of points are their numbers, and points between them are unknown."""
    lines: list[str] = []
    last = max(map(int, table.names))
    for row, image in enumerate(table.images):
        by_name = table.points(row)
        lines.append(f"LM={last}")
        notes: list[str] = []
        for name in range(1, last + 1):
            point = by_name.get(str(name), MISSING)
            lines.append(_row_of(point.position, point.state == PRESENT))
            place = " ".join(map(repr, point.position)) or NOWHERE
            notes.append(f"{place} {point.note or MISSING.note}")
        lines += [f"IMAGE={image}", f"ID={row}"]
        if table.is_predicted:
            lines.append(f"COMMENT={SEPARATOR.join(notes)}")
    return "\n".join([*lines, ""])
