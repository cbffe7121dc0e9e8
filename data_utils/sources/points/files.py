"""The formats of points, and files of any of them."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from data_utils.sources.points import coco_keypoints, csv_tables, labelme_points, markups, nnlandmark, tps
from data_utils.sources.points.table import PointTable
from runtime.errors import DataError


class PointFileFormat(NamedTuple):
    """A format of points.

    Args:
        extension: the end of the names of files that are written.
        holds_several: whether a file holds the points of several images.
        read: returns the points of a file; None if it holds something else.
        write: returns the content of a file.
    """

    extension: str
    holds_several: bool
    read: Callable[[Path], PointTable | None]
    write: Callable[[PointTable], str]


FORMATS = {  # JSON is read by the first that understands it
    "long": PointFileFormat(".csv", True, csv_tables.read, csv_tables.write),
    "wide": PointFileFormat(".csv", True, csv_tables.read, csv_tables.write),
    "deeplabcut": PointFileFormat(".csv", True, csv_tables.read, csv_tables.write),
    "markups": PointFileFormat(markups.MARKUPS, False, markups.read_markups, markups.write_markups),
    "fcsv": PointFileFormat(markups.FCSV, False, markups.read_fcsv, markups.write_fcsv),
    "tps": PointFileFormat(".tps", True, tps.read, tps.write),
    "labelme": PointFileFormat(".json", False, labelme_points.read, labelme_points.write),
    "coco": PointFileFormat(".json", True, coco_keypoints.read, coco_keypoints.write),
    "nnlandmark": PointFileFormat(".json", True, nnlandmark.read, nnlandmark.write),
}


def read(file: Path) -> PointTable | None:
    """The points of a file of any format; None if it holds something else, or no points."""
    name = file.name.lower()
    for point_format in dict.fromkeys(FORMATS.values()):
        if name.endswith(point_format.extension):
            table = point_format.read(file)
            if table is not None and table.names:
                return table
            if point_format.extension == markups.MARKUPS:  # it ends as other files of JSON do
                return None
    return None


def read_written(file: Path, layout: str) -> PointTable:
    """The points of a file that prediction has written; raises DataError for any other file."""
    table = FORMATS[layout].read(file)
    if table is None or not table.names:
        raise DataError(f"{file}: holds no points any more; --overwrite writes it again")
    return table


def content(table: PointTable) -> bytes:
    """The content of a file of the table's format."""
    return FORMATS[table.layout].write(table).encode()
