"""Points in CSV files: long, wide and DeepLabCut's. The center of the first pixel is (0, 0) in all three.

long        image,landmark,x,y[,z][,state]      a row for each point; state is present, absent or unknown
wide        image,X1,Y1,X2,Y2,...               a row for each image
            image,nose_x,nose_y[,nose_v],...    with v 0 for unknown, 1 and 2 for present
deeplabcut  three rows of headings, scorer, bodyparts and coords, then a row for each image
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from data_utils.sources.points.table import EMPTY_CELL, Certainty, PointTable, TableBuilder, number
from runtime.documents import MOST_BYTES_OF_DATA, TableWriter, parse_csv, read_bytes
from runtime.errors import DataError, one_line
from tasks.points import ABSENT, PRESENT, UNKNOWN

Rows = list[tuple[int, list[str]]]  # each with its line in the file
IMAGE_TITLES = ("image", "filename", "file", "file_name", "image_name", "image_id", "img", "path", "name")
LANDMARK_TITLES = ("landmark", "landmark_name", "point", "keypoint", "bodypart", "label")
STATES = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN}
STATE_NAMES = {state: name for name, state in STATES.items()} | {EMPTY_CELL: ""}
CLASS_TITLES = {"class", "label", "category", "classname", "classid", "labelname", "categoryid"}
EXPECTED = "image,landmark,x,y, or image and NAME_x,NAME_y of each point, or the three first lines of DeepLabCut"
MISSING_VALUES = ("", "nan", "na", "n/a", "none", "null")
DIALECTS = ",;\t"
AXES = "xyz"
NUMBERED_TITLE = re.compile(r"([xyz])_?(\d+)")  # X1
COLUMN_NAME = re.compile(r"(.+)[_ .-]([xyzv]|confidence|presence)")  # nose_x
PREDICTED_TITLES = Certainty._fields  # further columns of a prediction


class NoPointsError(DataError):
    """A file that is no table of points."""


def read_rows(file: str | Path) -> Rows:
    """The rows of a CSV file that are not empty. Raises NoPointsError for a file that cannot be read as text."""
    try:
        text = read_bytes(file, MOST_BYTES_OF_DATA).decode("utf-8-sig")
        first_line = text.partition("\n")[0]
        separator = max(DIALECTS, key=first_line.count)
        return list(parse_csv(text, separator))
    except (OSError, ValueError) as error:
        raise NoPointsError(f"{file} cannot be read as CSV ({one_line(error)}); save it as UTF-8") from error


def find_layout(rows: Rows) -> str | None:
    """The layout of a table of points; None for other tables."""
    if not rows:
        return None
    _, first_row = rows[0]
    titles = [title.strip().lower() for title in first_row]
    if titles[0] == "scorer":
        return "deeplabcut"
    if not set(titles) & set(IMAGE_TITLES) or _are_boxes(rows):
        return None
    if set(titles) & set(LANDMARK_TITLES) and {"x", "y"} <= set(titles):
        return "long"
    columns = _wide_columns(first_row).values()
    has_points = any((name, "y") in columns for name, axis in columns if axis == "x")
    return "wide" if has_points and titles[0] in IMAGE_TITLES else None


def _are_boxes(rows: Rows) -> bool:
    """Whether a table lists boxes for detection: corners or sides that look like the coordinates of points."""
    (_, first_row), *others = rows
    titles = [re.sub(r"[\W_]", "", title.lower()) for title in first_row]
    if {"x", "y", "w", "h"} <= set(titles) or {"xmin", "ymin", "xmax", "ymax"} <= set(titles):
        return True
    if any(title.startswith("bbox") for title in titles):
        return True

    def numbers(*names: str) -> np.ndarray:
        """(n, 4), the cells of four columns; empty unless all are there and hold numbers."""
        try:
            columns = [titles.index(name) for name in names]
            cells: list[str] = []
            for _, row in others:
                cells += [row[column] for column in columns]
            return np.array(cells, np.float64).reshape(-1, 4)
        except (ValueError, IndexError):
            return np.zeros((0, 4))

    sides = numbers("x", "y", "width", "height")
    if (sides[:, :2] > sides[:, 2:]).any():  # a point lies inside of its image
        return True
    corners = numbers("x1", "y1", "x2", "y2")
    images = [row[0] for _, row in others]
    has_class = not CLASS_TITLES.isdisjoint(titles) or len(set(images)) < len(images)
    are_two = len(corners) > 0 and "x3" not in titles
    return are_two and has_class and bool((corners[:, :2] < corners[:, 2:]).all())


def read(file: str | Path) -> PointTable | None:
    """The points of a file; None if it is no table of points."""
    try:
        return read_table(file)
    except NoPointsError:
        return None


def read_table(file: str | Path) -> PointTable:
    """The points of a file. Raises NoPointsError, with the reason, if it is no table of points."""
    rows = read_rows(file)
    layout = find_layout(rows)
    if layout is None and rows and _are_boxes(rows):
        raise NoPointsError(f"{file} lists boxes, which are for detection; areas need masks or polygons")
    if layout is None:
        titles = ", ".join(rows[0][1]) if rows else ""
        raise NoPointsError(f"{file}: its columns are {titles[:80]!r}, points have {EXPECTED}")
    table = READERS[layout](rows, str(file))
    if not table.images:
        raise NoPointsError(f"{file}: lists no points")
    return table


def _read_long(rows: Rows, file: str) -> PointTable:
    titles = [title.strip().lower() for title in rows[0][1]]
    image_column = _column(titles, IMAGE_TITLES)
    name_column = _column(titles, LANDMARK_TITLES)
    state_column = titles.index("state") if "state" in titles else None
    axes = [titles.index(axis) for axis in AXES if axis in titles]
    column_by_title = {title: column for column, title in enumerate(titles)}
    builder = TableBuilder("long", len(axes))
    for line, row in rows[1:]:
        location = f"{file}, line {line}"
        _check_length(row, len(titles), location)
        state, position = _point([row[column] for column in axes], location)
        if state_column is not None and row[state_column].strip():
            word = row[state_column].strip().lower()
            if word not in STATES:
                raise DataError(f"{location}: state {word!r} is none of {', '.join(STATES)}")
            if STATES[word] == PRESENT and state == EMPTY_CELL:
                raise DataError(f"{location}: a point that is present has no coordinates")
            state = STATES[word]
        image = row[image_column].strip()
        name = row[name_column].strip()
        if not image or not name:
            raise DataError(f"{location}: has no image or no landmark")
        builder.add(file, image, name, state, position, _certainty(row, column_by_title, location))
    return builder.table()


def _read_wide(rows: Rows, file: str) -> PointTable:
    titles = rows[0][1]
    columns = _wide_columns(titles)
    points: dict[str, dict[str, int]] = {}  # the column of each axis, and of the visibility
    for column, (name, axis) in columns.items():
        points.setdefault(name, {})[axis] = column
    points = {name: axis_columns for name, axis_columns in points.items() if {"x", "y"} <= axis_columns.keys()}
    counts = {len(axis_columns.keys() & set(AXES)) for axis_columns in points.values()}
    if len(counts) != 1:
        raise DataError(f"{file}: some points have a z and others have none")
    axes = counts.pop()
    builder = TableBuilder("wide", axes)
    for line, row in rows[1:]:
        location = f"{file}, line {line}"
        _check_length(row, len(titles), location)
        image = row[0].strip()
        for name, axis_columns in points.items():
            cells = [row[axis_columns[axis]] for axis in AXES if axis in axis_columns]
            state, position = _point(cells, f"{location}, {name}")
            if "v" in axis_columns and row[axis_columns["v"]].strip() in ("0", "0.0"):
                state = UNKNOWN
            builder.add(file, image, name, state, position, _certainty(row, axis_columns, location))
    return builder.table()


def _wide_columns(titles: Sequence[str]) -> dict[int, tuple[str, str]]:
    """The point and axis of each column that has one; v stands for its visibility."""
    columns = {}
    for column, title in enumerate(titles[1:], 1):
        text = title.strip()
        numbered = NUMBERED_TITLE.fullmatch(text.lower())
        named_column = COLUMN_NAME.fullmatch(text) or COLUMN_NAME.fullmatch(text.lower())
        if numbered:
            columns[column] = numbered[2], numbered[1]
        elif named_column:
            columns[column] = named_column[1], named_column[2].lower()
    return columns


def _read_deeplabcut(rows: Rows, file: str) -> PointTable:
    headings = {row[0].strip().lower(): row for _, row in rows[:3]}
    if "individuals" in headings:
        raise DataError(f"{file}: has several individuals in an image, which is not supported; give one table for each")
    if "bodyparts" not in headings or "coords" not in headings:
        raise DataError(f"{file}: begins with scorer, as tables of DeepLabCut do, but has no rows bodyparts and coords")
    bodyparts = headings["bodyparts"]
    coordinates = [cell.strip().lower() for cell in headings["coords"]]
    if len(bodyparts) != len(coordinates):
        raise DataError(f"{file}: its rows bodyparts and coords have different lengths")
    points: dict[str, dict[str, int]] = {}
    for column, (name, axis) in enumerate(zip(bodyparts, coordinates, strict=True)):
        title = "confidence" if axis == "likelihood" else axis
        if title in (*AXES, *PREDICTED_TITLES):
            points.setdefault(name.strip(), {})[title] = column
    lacking = [name for name, axis_columns in points.items() if not {"x", "y"} <= axis_columns.keys()]
    if lacking:
        raise DataError(f"{file}: {lacking[0]!r} has no columns x and y")
    axes = 3 if points and all("z" in axis_columns for axis_columns in points.values()) else 2
    # newer versions split the path into columns
    first = min((min(axis_columns.values()) for axis_columns in points.values()), default=1)
    builder = TableBuilder("deeplabcut", axes)
    for line, row in rows[3:]:
        location = f"{file}, line {line}"
        _check_length(row, len(bodyparts), location)
        image = "/".join(cell.strip() for cell in row[:first] if cell.strip())
        for name, axis_columns in points.items():
            cells = [row[axis_columns[axis]] for axis in AXES[:axes]]
            state, position = _point(cells, f"{location}, {name}")
            builder.add(file, image, name, state, position, _certainty(row, axis_columns, location))
    return builder.table()


def _point(cells: Sequence[str], location: str) -> tuple[int, tuple[float, ...]]:
    """The state and position of the cells of a point."""
    texts = [cell.strip() for cell in cells]
    missing = [text.lower() in MISSING_VALUES for text in texts]
    if all(missing):
        return EMPTY_CELL, ()
    if any(missing):
        raise DataError(f"{location}: has only some of the coordinates: {', '.join(texts)}")
    return PRESENT, tuple(number(text, location) for text in texts)


def _certainty(row: Sequence[str], columns: Mapping[str, int], location: str) -> Certainty | None:
    """The certainty of a predicted point; None for other points."""
    if not all(title in columns and row[columns[title]].strip() for title in PREDICTED_TITLES):
        return None
    return Certainty(*(number(row[columns[title]], location) for title in PREDICTED_TITLES))


def _column(titles: Sequence[str], names: Sequence[str]) -> int:
    """The first column with one of the titles."""
    return next(titles.index(name) for name in names if name in titles)


def _check_length(row: Sequence[str], expected: int, location: str) -> None:
    if len(row) != expected:
        raise DataError(f"{location}: has {len(row)} cells, the heading {expected}; is the file cut off?")


READERS: dict[str, Callable[[Rows, str], PointTable]] = {
    "long": _read_long,
    "wide": _read_wide,
    "deeplabcut": _read_deeplabcut,
}


def write(table: PointTable) -> str:
    """The content of a file in the table's own layout, with presence and confidence if the table has them."""
    text = io.StringIO(newline="")
    WRITERS[table.layout](TableWriter(text), table)
    return text.getvalue()


def _write_long(writer: TableWriter, table: PointTable) -> None:
    axes = list(AXES[: table.axes])
    writer.writerow(["image", "landmark", *axes, "state", *_certainty_titles(table)])
    for row, image in enumerate(table.images):
        for column, name in enumerate(table.names):
            state = int(table.states[row, column])
            if state == UNKNOWN and table.presence is None:
                continue
            cells = _cells(table, row, column)
            writer.writerow([image, name, *cells, STATE_NAMES[state], *_certainty_cells(table, row, column)])


def _write_wide(writer: TableWriter, table: PointTable) -> None:
    are_numbers = all(name.isdigit() for name in table.names)
    titles = ["image"]
    for name in table.names:
        for axis in AXES[: table.axes]:
            titles.append(f"{axis.upper()}{name}" if are_numbers else f"{name}_{axis}")
        titles += [f"{name}_{title}" for title in _certainty_titles(table)]
    writer.writerow(titles)
    for row, image in enumerate(table.images):
        writer.writerow([image, *_row(table, row)])


def _write_deeplabcut(writer: TableWriter, table: PointTable) -> None:
    coordinates = [*AXES[: table.axes]]
    for title in _certainty_titles(table):
        coordinates.append("likelihood" if title == "confidence" else title)
    bodyparts: list[str] = []
    for name in table.names:
        bodyparts += [name] * len(coordinates)
    writer.writerow(["scorer"] + ["unet"] * len(bodyparts))
    writer.writerow(["bodyparts", *bodyparts])
    writer.writerow(["coords", *(coordinates * len(table.names))])
    for row, image in enumerate(table.images):
        writer.writerow([image, *_row(table, row)])


def _row(table: PointTable, row: int) -> list[str]:
    cells: list[str] = []
    for column in range(len(table.names)):
        cells += _cells(table, row, column)
        cells += _certainty_cells(table, row, column)
    return cells


def _cells(table: PointTable, row: int, column: int) -> list[str]:
    """The coordinates of a point; empty cells if it has none."""
    if table.states[row, column] != PRESENT and table.presence is None:
        return [""] * table.axes
    return [repr(float(value)) for value in table.positions[row, column]]


def _certainty_titles(table: PointTable) -> list[str]:
    return [] if table.presence is None else list(PREDICTED_TITLES)


def _certainty_cells(table: PointTable, row: int, column: int) -> list[str]:
    if table.presence is None:
        return []
    return [f"{value:.6f}" for value in table.certainty(row, column)]


WRITERS = {"long": _write_long, "wide": _write_wide, "deeplabcut": _write_deeplabcut}
