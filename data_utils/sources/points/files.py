"""The formats of points, and files of any of them."""

from pathlib import Path

from data_utils.sources.points import coco_keypoints, csv_tables, labelme_points, markups, nnlandmark, tps
from data_utils.sources.points.table import PointFileFormat, PointTable
from runtime.errors import DataError

FORMATS: dict[str, PointFileFormat] = {  # JSON is read by the first that understands it
    "long": csv_tables.FORMAT,
    "wide": csv_tables.FORMAT,
    "deeplabcut": csv_tables.FORMAT,
    "markups": markups.MARKUPS_FORMAT,
    "fcsv": markups.FCSV_FORMAT,
    "tps": tps.FORMAT,
    "labelme": labelme_points.FORMAT,
    "coco": coco_keypoints.FORMAT,
    "nnlandmark": nnlandmark.FORMAT,
}


def read(file: Path) -> PointTable | None:
    """The points of a file of any format; None if it holds something else, or no points."""
    name = file.name.lower()
    for layout, point_format in FORMATS.items():
        if name.endswith(point_format.extension):
            table = read_as(file, layout)
            if table is not None or point_format is markups.MARKUPS_FORMAT:
                return table
    return None


def read_as(file: Path, layout: str) -> PointTable | None:
    """The points of a file of one format; None if it holds something else, or no points."""
    table = FORMATS[layout].read(file)
    if table is None or not table.names:
        return None
    return table


def read_written(file: Path, layout: str) -> PointTable:
    """The points of a file that prediction has written; raises DataError for any other file."""
    table = read_as(file, layout)
    if table is None:
        raise DataError(f"{file}: holds no points any more; --overwrite writes it again")
    return table


def content(table: PointTable) -> bytes:
    """The content of a file of the table's format."""
    return FORMATS[table.layout].write(table).encode()
