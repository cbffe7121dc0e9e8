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
from dataclasses import dataclass, field
from pathlib import Path

from data_utils.sources.points.spaces import PIXELS_UPWARD
from data_utils.sources.points.table import Certainty, PointTable, TableBuilder, number, read_note, written_note
from runtime.documents import MOST_BYTES_OF_DATA, read_bytes, text_lines
from runtime.errors import DataError, one_line
from tasks.points import PRESENT, UNKNOWN

TPS = ".tps"
MISSING_VALUES = ("na", "nan")
NOWHERE = "-1 -1"  # coordinates of an unknown point
MOST_POINTS = 10_000  # a damaged file may claim that an image has any number
SEPARATOR = "; "  # between the predictions of points in a comment
Lines = Iterator[tuple[int, str]]


@dataclass
class Specimen:
    """The lines of a file that describe one image."""

    points: list[tuple[int, tuple[float, ...]]]  # state and position of each
    location: str  # the line that it begins in
    fields: dict[str, str] = field(default_factory=dict)


def read_tps(file: Path) -> PointTable | None:
    """The points of a file; None if it holds none."""
    try:
        content = read_bytes(file, MOST_BYTES_OF_DATA)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({one_line(error)})") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:  # older programs write names in the code page of their machine
        text = content.decode("latin-1")
    builder = TableBuilder("tps", 2)
    for specimen in _specimens(text, file):
        image = specimen.fields.get("IMAGE") or specimen.fields.get("ID")
        if not image:
            raise DataError(f"{specimen.location}: its points have no IMAGE= and no ID=; is the file cut off?")
        predictions = _predictions(specimen)
        builder.add_image(str(file), image)
        for index, (state, position) in enumerate(specimen.points):
            certainty = None
            if predictions:
                position, certainty = predictions[index]
            builder.add(str(file), image, str(index + 1), state, position, certainty)
    if not builder.images:
        raise DataError(f"{file}: has no line LM=, which the points of an image begin with in TPS")
    return builder.table(PIXELS_UPWARD) if builder.names else None


def _specimens(text: str, file: Path) -> Iterator[Specimen]:
    """The entry of each image in a file."""
    lines: Lines = iter([(index, line) for index, line in enumerate(text_lines(text), 1) if line.strip()])
    specimen: Specimen | None = None
    for index, line in lines:
        title, _, value = (part.strip() for part in line.partition("="))
        field_name = title.upper()
        location = f"{file}, line {index}"
        if field_name == "LM3":
            raise DataError(f"{location}: LM3= lists points of volumes, and TPS is read for images only")
        if field_name == "LM":
            if specimen is not None:
                yield specimen
            points = [_point(row, point_location) for row, point_location in _next_lines(lines, value, location)]
            specimen = Specimen(points, location)
        elif field_name == "POINTS":  # a curve has points too
            for _ in _next_lines(lines, value, location):
                pass
        elif specimen is not None and value:
            specimen.fields.setdefault(field_name, value)
    if specimen is not None:
        yield specimen


def _next_lines(lines: Lines, count: str, location: str) -> Iterator[tuple[str, str]]:
    """The next lines, as many as `count` says, each with its place for error messages."""
    if not re.fullmatch(r"\d{1,5}", count) or int(count) > MOST_POINTS:
        raise DataError(f"{location}: {count[:40]!r} is no number of points, 0 to {MOST_POINTS:,}")
    for index in range(int(count)):
        _, line = next(lines, (0, ""))
        if not line or "=" in line:
            raise DataError(f"{location}: {count} points are to follow, but there are {index}; is the file cut off?")
        yield line, f"{location}: point {index + 1}"


def _point(line: str, location: str) -> tuple[int, tuple[float, ...]]:
    """The state and position of a point."""
    cells = line.split()
    if len(cells) != 2:
        raise DataError(f"{location}: has {len(cells)} coordinates, expected x and y")
    if any(cell.lower() in MISSING_VALUES for cell in cells):
        return UNKNOWN, ()
    position = tuple(number(cell, location) for cell in cells)
    return (UNKNOWN, ()) if min(position) < 0 else (PRESENT, position)


def _predictions(specimen: Specimen) -> list[tuple[tuple[float, ...], Certainty]]:
    """The position of each point of a predicted image and its certainty; empty for other images."""
    predictions = []
    for text in specimen.fields.get("COMMENT", "").split(SEPARATOR):
        certainty = read_note(text, specimen.location)
        if certainty is None:
            return []
        predictions.append((tuple(number(cell, specimen.location) for cell in text.split()[:2]), certainty))
    return predictions if len(predictions) == len(specimen.points) else []


def write_tps(table: PointTable) -> str:
    """The content of a file; the names of points are their numbers, and points between them are unknown."""
    lines: list[str] = []
    numbers = {int(name): column for column, name in enumerate(table.names)}
    columns = [numbers.get(name) for name in range(1, max(numbers) + 1)]
    for row, image in enumerate(table.images):
        lines.append(f"LM={len(columns)}")
        for column in columns:
            lines.append(_position(table, row, column))
        lines += [f"IMAGE={image}", f"ID={row}"]
        if table.presence is not None:
            notes = [_note(table, row, column) for column in columns]
            lines.append(f"COMMENT={SEPARATOR.join(notes)}")
    return "\n".join([*lines, ""])


def _position(table: PointTable, row: int, column: int | None) -> str:
    """x and y of a point, as other programs read them."""
    if column is None or table.states[row, column] != PRESENT:
        return NOWHERE
    return " ".join(repr(max(0.0, float(side))) for side in table.positions[row, column])


def _note(table: PointTable, row: int, column: int | None) -> str:
    """The prediction for a point in words, also for a point that is predicted to be absent."""
    if column is None:
        return f"{NOWHERE} {written_note(Certainty(0, 0))}"
    x, y = table.positions[row, column].tolist()
    return f"{x!r} {y!r} {written_note(table.certainty(row, column))}"
