"""Points in CSV files: long, wide and DeepLabCut's. The center of the first pixel is (0, 0) in all three.

long        image,landmark,x,y[,z][,state]      a row for each point; state is present, absent or unknown
wide        image,X1,Y1,X2,Y2,...               a row for each image
            image,nose_x,nose_y[,nose_v],...    with v 0 for unknown, 1 and 2 for present
deeplabcut  three rows of headings, scorer, bodyparts and coords, then a row for each image
"""

import io
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.point_states import ABSENT, PRESENT, UNKNOWN
from data_utils.sources.annotations.documents import rows_of
from data_utils.sources.points.table import (
    EMPTY_CELL,
    Certainty,
    ImagePoints,
    PointTable,
    number,
    read_certainty,
    with_point,
)
from runtime.documents import write_row
from runtime.errors import DataError

IMAGE_TITLES = ("image", "filename", "file", "file_name", "image_name", "image_id", "img", "path", "name")
LANDMARK_TITLES = ("landmark", "landmark_name", "point", "keypoint", "bodypart", "label")
STATES = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN}
STATE_NAMES = {state: name for name, state in STATES.items()} | {EMPTY_CELL: ""}
# titles that only tables of boxes have together, without signs between their words; corners need a class beside them
BOXES: tuple[set[str], ...] = ({"x", "y", "w", "h"}, {"x", "y", "width", "height"}, {"xmin", "ymin", "xmax", "ymax"})
BOXES += ({"xcenter", "ycenter", "w"}, {"xcenter", "ycenter", "width"})
CORNER_AND_SIZE = {"x1", "y1", "w", "h"}  # beside a second point, the size is that of the image
CORNERS = {"x1", "y1", "x2", "y2"}
RUN_LENGTHS = {"encodedpixels", "rlemask", "rle"}  # Kaggle's words for masks as text
CLASS_TITLES = {"class", "label", "category", "classname", "classid", "labelname", "categoryid"}
EXPECTED = "image,landmark,x,y, or image and NAME_x,NAME_y of each point (y counts down), or DeepLabCut's three lines"
MISSING_VALUES = {"", "nan", "na", "n/a", "none", "null"}
AXES = "xyz"
NAME_FIRST = re.compile(r"(.+)[_ .-]([xyzv]|confidence|presence)")  # nose_x
AXIS_FIRST = re.compile(r"([xyzvXYZV])(?:[_ .-]|(?=\d+$))(.+)")  # x_nose, X1
PREDICTED_TITLES = Certainty._fields  # further columns of a prediction


class NoPointsError(DataError):
    """A file that is no table of points."""


class Headings(NamedTuple):
    """What the first rows of a table say.

    Args:
        layout: long, wide or deeplabcut.
        rows: how many rows they are.
        image: the columns of the image's name.
        points: the column of each axis and of other titles, for each point; for the point "" of a long table, whose
            rows name their points.
    """

    layout: str
    rows: int
    image: slice
    points: dict[str, dict[str, int]]

    @property
    def axes(self) -> str:
        """The axes that the first point has, and all others have."""
        return AXES if "z" in next(iter(self.points.values()), {}) else "xy"


def read(file: Path) -> PointTable | None:
    """The points of a file; None if it is no table of points."""
    try:
        return read_table(file)
    except NoPointsError:
        return None


def read_table(file: Path) -> PointTable:
    """The points of a file. Raises NoPointsError, with the reason, if it is no table of points."""
    try:
        rows, separator = rows_of(file)
    except DataError as error:
        raise NoPointsError(str(error)) from error
    headings = read_headings([row for _, row in rows[:3]], file)
    entries: dict[str, ImagePoints] = {}
    width = len(rows[headings.rows - 1][1])
    for line, row in rows[headings.rows :]:
        location = f"{file}, line {line}"
        if len(row) != width:
            raise DataError(f"{location}: has {len(row)} cells, the heading {width}; is the file cut off?")
        row = list(map(str.strip, row))
        image = "/".join(filter(None, row[headings.image]))
        entry = entries.setdefault(image, ImagePoints(str(file), image))
        for name, columns in headings.points.items():
            cells = {title: row[column] for title, column in columns.items()}
            if separator != ",":
                cells |= {axis: with_point(cells[axis]) for axis in headings.axes}
            if headings.layout != "long":
                _add_point(entry, name, cells, f"{location}, {name}")
            elif image and cells["name"]:
                _add_point(entry, cells["name"], cells, location)
            else:
                raise DataError(f"{location}: has no image or no landmark")
    if not entries or not headings.points:
        raise NoPointsError(f"{file}: lists no points")
    return PointTable(headings.layout, len(headings.axes), list(entries.values()))


def read_headings(rows: Sequence[Sequence[str]], file: Path) -> Headings:
    """The headings of a table of points, given its first rows. Raises NoPointsError for other tables."""
    titles = list(map(str.strip, rows[0])) if rows else [""]
    words = list(map(str.lower, titles))
    if words[0] == "scorer":
        points = _columns(_deeplabcut_titles(rows, file), file)
        # newer versions split the path into columns
        first = min(chain.from_iterable(columns.values() for columns in points.values()), default=1)
        return Headings("deeplabcut", 3, slice(first), points)
    names = {re.sub(r"[\W_]", "", word) for word in words}
    are_corners = names >= CORNERS and "x3" not in names and not CLASS_TITLES.isdisjoint(names)
    are_corners |= names >= CORNER_AND_SIZE and "x2" not in names
    if are_corners or any(box <= names for box in BOXES) or any(name.startswith("bbox") for name in names):
        raise NoPointsError(f"{file} lists boxes, which are for detection; areas need masks or polygons")
    if not names.isdisjoint(RUN_LENGTHS):
        raise NoPointsError(f"{file} lists run lengths, which are not read; store a mask for each image as PNG")
    image_titles = [title for title in IMAGE_TITLES if title in words]
    name_titles = [title for title in LANDMARK_TITLES if title in words]
    if image_titles and name_titles and {"x", "y"} <= set(words):
        columns = {title: words.index(title) for title in (*AXES, "state", *PREDICTED_TITLES) if title in words}
        columns["name"] = words.index(name_titles[0])
        image = words.index(image_titles[0])
        return Headings("long", 1, slice(image, image + 1), {"": columns})
    points = _columns(titles, file)
    # pandas leaves the title of its numbers of rows empty
    first = next((column for column, word in enumerate(words) if word), 0)
    if not points or words[first] not in IMAGE_TITLES:
        raise NoPointsError(f"{file}: its columns are {', '.join(titles)[:80]!r}, points have {EXPECTED}")
    return Headings("wide", 1, slice(first, first + 1), points)


def _columns(titles: Sequence[str], file: Path) -> dict[str, dict[str, int]]:
    """The columns of each point that has an x and a y; v stands for its visibility."""
    points: dict[str, dict[str, int]] = {}
    for column, title in enumerate(titles[1:], 1):
        name_first = NAME_FIRST.fullmatch(title) or NAME_FIRST.fullmatch(title.lower())
        axis_first = AXIS_FIRST.fullmatch(title)
        if name_first:
            name, axis = name_first.groups()
        elif axis_first:
            axis, name = axis_first.groups()
        else:
            continue
        points.setdefault(name, {})[axis.lower()] = column
    points = {name: columns for name, columns in points.items() if {"x", "y"} <= columns.keys()}
    if len({"z" in columns for columns in points.values()}) > 1:
        raise DataError(f"{file}: some points have a z and others have none")
    return points


def _deeplabcut_titles(rows: Sequence[Sequence[str]], file: Path) -> list[str]:
    """The three first rows of DeepLabCut's tables as the titles of a wide table."""
    row_by_title = {row[0].strip().lower(): row for row in rows}
    bodyparts = row_by_title.get("bodyparts", [])
    coordinates = row_by_title.get("coords", [])
    if "individuals" in row_by_title:
        raise DataError(f"{file}: has several individuals in an image, which is not supported; give one table for each")
    if not bodyparts or len(bodyparts) != len(coordinates):
        raise DataError(
            f"{file}: begins with scorer, as DeepLabCut does, but has no rows bodyparts and coords of one length"
        )
    titles: list[str] = []
    for bodypart, coordinate in zip(bodyparts, coordinates, strict=True):
        axis = coordinate.strip().lower()
        titles.append(f"{bodypart.strip()}_{'confidence' if axis == 'likelihood' else axis}")
    return titles


def _add_point(entry: ImagePoints, name: str, cells: Mapping[str, str], location: str) -> None:
    """Add the point of these cells, which are known by the titles of their columns."""
    texts = [cells[axis] for axis in AXES if axis in cells]
    missing = sum(text.lower() in MISSING_VALUES for text in texts)
    if 0 < missing < len(texts):
        raise DataError(f"{location}: has only some of the coordinates: {', '.join(texts)}")
    state = EMPTY_CELL
    position: list[float] = []
    if not missing:
        state = PRESENT
        position = [number(text, location) for text in texts]
    word = cells.get("state", "").lower()
    if word:
        if word not in STATES:
            raise DataError(f"{location}: state {word!r} is none of {', '.join(STATES)}")
        state = STATES[word]
        if state == PRESENT and missing:
            raise DataError(f"{location}: a point that is present has no coordinates")
    if cells.get("v") in ("0", "0.0"):
        state = UNKNOWN
    entry.add(name, state, position, read_certainty(cells.get("confidence"), cells.get("presence"), location))


def write(table: PointTable) -> str:
    """The content of a file in the table's own layout, with presence and confidence if the table has them."""
    text = io.StringIO(newline="")
    axes = list(AXES[: table.axes])
    certainty_titles = list(PREDICTED_TITLES) if table.is_predicted else []
    if table.layout == "long":
        write_row(text, ["image", "landmark", *axes, "state", *certainty_titles])
    elif table.layout == "wide":
        titles = ["image"]
        are_numbers = all(name.isdigit() for name in table.names)
        for name in table.names:
            titles += [f"{axis.upper()}{name}" if are_numbers else f"{name}_{axis}" for axis in axes]
            titles += [f"{name}_{title}" for title in certainty_titles]
        write_row(text, titles)
    else:
        coordinates = axes + ["likelihood" if title == "confidence" else title for title in certainty_titles]
        bodyparts = np.repeat(table.names, len(coordinates)).tolist()
        write_row(text, ["scorer"] + ["unet"] * len(bodyparts))
        write_row(text, ["bodyparts", *bodyparts])
        write_row(text, ["coords", *(coordinates * len(table.names))])
    for row, image in enumerate(table.images):
        whole_row = [image]
        for name, point in table.points(row).items():
            cells = [repr(side) for side in point.position] or [""] * table.axes
            certainty = [f"{value:.6f}" for value in point.certainty or ()] or [""] * len(certainty_titles)
            whole_row += cells + certainty
            if table.layout == "long" and (point.state != UNKNOWN or certainty_titles):
                write_row(text, [image, name, *cells, STATE_NAMES[point.state], *certainty])
        if table.layout != "long":
            write_row(text, whole_row)
    return text.getvalue()
