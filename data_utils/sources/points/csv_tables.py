"""Points in CSV files: long, wide and DeepLabCut's. The center of the first pixel is (0, 0) in all three.

long        image,landmark,x,y[,z][,state]      a row for each point; state is present, absent or unknown
wide        image,X1,Y1,X2,Y2,...               a row for each image
            image,nose_x,nose_y[,nose_v],...    with v 0 for unknown, 1 and 2 for present
deeplabcut  three rows of headings, scorer, bodyparts and coords, then a row for each image
"""

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.sources.points.table import (
    EMPTY_CELL,
    Certainty,
    ImagePoints,
    PointFileFormat,
    PointTable,
    number,
    with_point,
)
from runtime.documents import MOST_BYTES_OF_DATA, TableWriter, parse_csv, read_bytes
from runtime.errors import DataError, one_line

Rows = list[tuple[int, list[str]]]  # each with its line in the file
IMAGE_TITLES = ("image", "filename", "file", "file_name", "image_name", "image_id", "img", "path", "name")
LANDMARK_TITLES = ("landmark", "landmark_name", "point", "keypoint", "bodypart", "label")
STATES = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN}
STATE_NAMES = {state: name for name, state in STATES.items()} | {EMPTY_CELL: ""}
CLASS_TITLES = {"class", "label", "category", "classname", "classid", "labelname", "categoryid"}
BOXES = ({"x", "y", "w", "h"}, {"xmin", "ymin", "xmax", "ymax"})  # titles that boxes alone have
EXPECTED = "image,landmark,x,y, or image and NAME_x,NAME_y of each point, or the three first lines of DeepLabCut"
MISSING_VALUES = {"", "nan", "na", "n/a", "none", "null"}
DIALECTS = ",;\t"
AXES = "xyz"
NUMBERED_TITLE = re.compile(r"([xyz])_?(\d+)")  # X1
AXIS_FIRST = re.compile(r"([xyzvXYZV])[_ .-](.+)")  # x_nose
COLUMN_NAME = re.compile(r"(.+)[_ .-]([xyzv]|confidence|presence)")  # nose_x
PREDICTED_TITLES = Certainty._fields  # further columns of a prediction


class NoPointsError(DataError):
    """A file that is no table of points."""


class Headings(NamedTuple):
    """What the first rows of a table say.

    Args:
        layout: long, wide or deeplabcut.
        width: how many cells a row has.
        rows: how many rows they are.
        image: the columns of the image's name.
        points: the column of each axis and of other titles, for each point; for the point "" of a long table, whose
            rows name their points.
    """

    layout: str
    width: int
    rows: int
    image: slice
    points: dict[str, dict[str, int]]


def read(file: Path) -> PointTable | None:
    """The points of a file; None if it is no table of points."""
    try:
        return read_table(file)
    except NoPointsError:
        return None


def read_table(file: str | Path) -> PointTable:
    """The points of a file. Raises NoPointsError, with the reason, if it is no table of points."""
    try:
        text = read_bytes(file, MOST_BYTES_OF_DATA).decode("utf-8-sig")
        separator = max(DIALECTS, key=text.partition("\n")[0].count)
        rows = list(parse_csv(text, separator))
    except (OSError, ValueError) as error:
        raise NoPointsError(f"{file} cannot be read as CSV ({one_line(error)}); save it as UTF-8") from error
    headings = read_headings(rows, str(file))
    if headings is None and rows and _are_boxes(rows):
        raise NoPointsError(f"{file} lists boxes, which are for detection; areas need masks or polygons")
    if headings is None:
        titles = ", ".join(rows[0][1]) if rows else ""
        raise NoPointsError(f"{file}: its columns are {titles[:80]!r}, points have {EXPECTED}")
    axes = {len(columns.keys() & set(AXES)) for columns in headings.points.values()}
    if len(axes) > 1:
        raise DataError(f"{file}: some points have a z and others have none")
    entries: dict[str, ImagePoints] = {}
    for line, row in rows[headings.rows :]:
        location = f"{file}, line {line}"
        if len(row) != headings.width:
            raise DataError(f"{location}: has {len(row)} cells, the heading {headings.width}; is the file cut off?")
        image = "/".join(cell.strip() for cell in row[headings.image] if cell.strip())
        entry = entries.setdefault(image, ImagePoints(str(file), image))
        for name, columns in headings.points.items():
            if separator != ",":
                for axis in columns.keys() & set(AXES):
                    row[columns[axis]] = with_point(row[columns[axis]])
            if headings.layout == "long":
                name = row[columns["name"]].strip()
                if not image or not name:
                    raise DataError(f"{location}: has no image or no landmark")
                _add_point(entry, name, row, columns, location)
            else:
                _add_point(entry, name, row, columns, f"{location}, {name}")
    if not entries or not headings.points:
        raise NoPointsError(f"{file}: lists no points")
    return PointTable(headings.layout, axes.pop(), list(entries.values()))


def read_headings(rows: Rows, file: str) -> Headings | None:
    """The headings of a table of points; None for other tables."""
    if not rows:
        return None
    _, first_row = rows[0]
    titles = [title.strip().lower() for title in first_row]
    if titles[0] == "scorer":
        return _deeplabcut_headings(rows, file)
    if not set(titles) & set(IMAGE_TITLES) or _are_boxes(rows):
        return None
    if set(titles) & set(LANDMARK_TITLES) and {"x", "y"} <= set(titles):
        columns = {title: titles.index(title) for title in (*AXES, "state", *PREDICTED_TITLES) if title in titles}
        columns["name"] = _column(titles, LANDMARK_TITLES)
        image = _column(titles, IMAGE_TITLES)
        return Headings("long", len(titles), 1, slice(image, image + 1), {"": columns})
    points = _wide_columns(first_row)
    if not points or titles[0] not in IMAGE_TITLES:
        return None
    return Headings("wide", len(titles), 1, slice(1), points)


def _column(titles: Sequence[str], names: Sequence[str]) -> int:
    """The first column with one of the titles."""
    return next(titles.index(name) for name in names if name in titles)


def _wide_columns(titles: Sequence[str]) -> dict[str, dict[str, int]]:
    """The columns of each point that has an x and a y; v stands for its visibility."""
    points: dict[str, dict[str, int]] = {}
    for column, title in enumerate(titles[1:], 1):
        text = title.strip()
        numbered = NUMBERED_TITLE.fullmatch(text.lower())
        named = COLUMN_NAME.fullmatch(text) or COLUMN_NAME.fullmatch(text.lower())
        axis_first = AXIS_FIRST.fullmatch(text)
        if numbered:
            points.setdefault(numbered[2], {})[numbered[1]] = column
        elif named:
            points.setdefault(named[1], {})[named[2].lower()] = column
        elif axis_first:
            points.setdefault(axis_first[2], {})[axis_first[1].lower()] = column
    return {name: columns for name, columns in points.items() if {"x", "y"} <= columns.keys()}


def _deeplabcut_headings(rows: Rows, file: str) -> Headings:
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
    lacking = [name for name, columns in points.items() if not {"x", "y"} <= columns.keys()]
    if lacking:
        raise DataError(f"{file}: {lacking[0]!r} has no columns x and y")
    # newer versions split the path into columns
    first = min((min(columns.values()) for columns in points.values()), default=1)
    return Headings("deeplabcut", len(bodyparts), 3, slice(first), points)


def _are_boxes(rows: Rows) -> bool:
    """Whether a table lists boxes for detection: corners or sides that look like the coordinates of points."""
    (_, first_row), *others = rows
    titles = [re.sub(r"[\W_]", "", title.lower()) for title in first_row]
    names = set(titles)
    if any(box <= names for box in BOXES) or any(title.startswith("bbox") for title in titles):
        return True
    if {"xcenter", "ycenter"} <= names and {"width", "height", "w", "h"} & names:
        return True
    if {"x1", "y1", "x2", "y2"} <= names:
        return "x3" not in names and not CLASS_TITLES.isdisjoint(names)
    with suppress(ValueError, IndexError):  # there are no such columns, or cells are no numbers
        x, width = titles.index("x"), titles.index("width")
        return any(float(row[x]) > float(row[width]) for _, row in others)  # a point lies inside of its image
    return False


def _add_point(entry: ImagePoints, name: str, row: Sequence[str], columns: Mapping[str, int], location: str) -> None:
    """Add the point that a row holds in these columns."""
    texts = [row[columns[axis]].strip() for axis in AXES if axis in columns]
    missing = sum(text.lower() in MISSING_VALUES for text in texts)
    if 0 < missing < len(texts):
        raise DataError(f"{location}: has only some of the coordinates: {', '.join(texts)}")
    state = EMPTY_CELL
    position: list[float] = []
    if not missing:
        state = PRESENT
        position = [number(text, location) for text in texts]
    word = row[columns["state"]].strip().lower() if "state" in columns else ""
    if word:
        if word not in STATES:
            raise DataError(f"{location}: state {word!r} is none of {', '.join(STATES)}")
        if STATES[word] == PRESENT and missing:
            raise DataError(f"{location}: a point that is present has no coordinates")
        state = STATES[word]
    if "v" in columns and row[columns["v"]].strip() in ("0", "0.0"):
        state = UNKNOWN
    certainty: Certainty | None = None
    predicted = [row[columns[title]].strip() for title in PREDICTED_TITLES if title in columns]
    if len(predicted) == len(PREDICTED_TITLES) and all(predicted):
        certainty = Certainty(*(number(text, location) for text in predicted))
    entry.add(name, state, position, certainty)


def write(table: PointTable) -> str:
    """The content of a file in the table's own layout, with presence and confidence if the table has them."""
    text = io.StringIO(newline="")
    writer = TableWriter(text)
    axes = list(AXES[: table.axes])
    certainty_titles: list[str] = []
    if table.is_predicted:
        certainty_titles += PREDICTED_TITLES
    if table.layout == "long":
        writer.writerow(["image", "landmark", *axes, "state", *certainty_titles])
    elif table.layout == "wide":
        titles = ["image"]
        are_numbers = all(name.isdigit() for name in table.names)
        for name in table.names:
            titles += [f"{axis.upper()}{name}" if are_numbers else f"{name}_{axis}" for axis in axes]
            titles += [f"{name}_{title}" for title in certainty_titles]
        writer.writerow(titles)
    else:
        coordinates = axes + ["likelihood" if title == "confidence" else title for title in certainty_titles]
        bodyparts = np.repeat(table.names, len(coordinates)).tolist()
        writer.writerow(["scorer"] + ["unet"] * len(bodyparts))
        writer.writerow(["bodyparts", *bodyparts])
        writer.writerow(["coords", *(coordinates * len(table.names))])
    for row, image in enumerate(table.images):
        whole_row = [image]
        for name, point in zip(table.names, table.points(row), strict=True):
            cells = [repr(side) for side in point.position] or [""] * table.axes
            certainty = [f"{value:.6f}" for value in point.certainty or ()] or [""] * len(certainty_titles)
            whole_row += cells + certainty
            if table.layout == "long" and (point.state != UNKNOWN or certainty_titles):
                writer.writerow([image, name, *cells, STATE_NAMES[point.state], *certainty])
        if table.layout != "long":
            writer.writerow(whole_row)
    return text.getvalue()


FORMAT = PointFileFormat(".csv", True, read, write)
