"""The formats of points: how the files of each format are named, read and written."""

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


JSON = ".json"
CSV = PointFileFormat(".csv", True, csv_tables.read, csv_tables.write)
FORMATS: dict[str, PointFileFormat] = {
    "long": CSV,
    "wide": CSV,
    "deeplabcut": CSV,
    "markups": PointFileFormat(markups.MARKUPS, False, markups.read_markups, markups.write_markups),
    "fcsv": PointFileFormat(markups.FCSV, False, markups.read_fcsv, markups.write_fcsv),
    "tps": PointFileFormat(tps.TPS, True, tps.read_tps, tps.write_tps),
    "labelme": PointFileFormat(JSON, False, labelme_points.read_shapes, labelme_points.write_shapes),
    "coco": PointFileFormat(JSON, True, coco_keypoints.read_keypoints, coco_keypoints.write_keypoints),
    "nnlandmark": PointFileFormat(JSON, True, nnlandmark.read_nnlandmark, nnlandmark.write_nnlandmark),
}


def read(file: Path) -> PointTable | None:
    """The points of a file of any format; None if it holds something else."""
    name = file.name.lower()
    if name.endswith(markups.MARKUPS):
        return markups.read_markups(file)
    for point_format in dict.fromkeys(FORMATS.values()):  # the layouts of CSV are one format
        if name.endswith(point_format.extension):
            table = point_format.read(file)
            if table is not None:
                return table
    return None


def read_written(file: Path, layout: str) -> PointTable:
    """The points of a file that prediction has written; raises DataError for any other file."""
    table = FORMATS[layout].read(file)
    if table is None:
        raise DataError(f"{file}: holds no points any more; --overwrite writes it again")
    return table


def content(table: PointTable) -> bytes:
    """The content of a file of the table's format."""
    return FORMATS[table.layout].write(table).encode()
