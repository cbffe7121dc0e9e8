"""The table of the objects of an image: its columns, its cells, and how it and the mask are read again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_utils.image_io.reader import read_mask
from data_utils.image_io.volumes import VolumeHeader
from runtime.documents import MOST_BYTES_OF_DATA, parse_csv, read_bytes
from runtime.errors import DataError, one_line
from tasks.labeled_objects import LabeledObjects
from tasks.object_labels import pack_labels
from tasks.objects.finder import DetectedObject

IMAGE_COLUMNS = ("number", "class", "area", "center_y", "center_x", "top", "left", "bottom", "right", "score")
VOLUME_COLUMNS: tuple[str, ...] = ("number", "class", "voxels", "volume_mm3", "x_mm", "y_mm", "z_mm")
VOLUME_COLUMNS += ("first_z", "first_y", "first_x", "end_z", "end_y", "end_x", "score")
WHOLE = ("number", "area", "top", "left", "bottom", "right")  # columns of whole numbers
REMEDY = "--overwrite makes it anew"


def table_rows(table: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of the table of an image. Raises DataError if somebody has made it unreadable."""
    try:
        text = read_bytes(table, MOST_BYTES_OF_DATA).decode(errors="replace")
        rows = parse_csv(text)
        if next(rows, (1, []))[1] != list(columns):
            raise ValueError("expected the columns " + ", ".join(columns))
        for _, cells in rows:
            row = dict(zip(columns, cells, strict=True))
            for name in WHOLE:
                int(row.get(name, "0"))
            float(row["score"])
            yield row
    except (OSError, ValueError) as error:
        raise DataError(f"{table}: is not as prediction wrote it ({one_line(error)}); {REMEDY}") from error


def image_cells(detected: DetectedObject) -> list[str]:
    """Center and box of an object, in pixels."""
    return [*(f"{position:.2f}" for position in detected.center), *map(str, detected.box)]


def volume_cells(detected: DetectedObject, header: VolumeHeader) -> list[str]:
    """Volume and center of an object in mm, in the space of the file; its box in voxels, in RAS orientation."""
    volume = detected.size * float(np.prod(header.spacing))
    position = header.affine @ [*reversed(detected.center), 1]
    return [f"{volume:.4g}", *(f"{millimeters:.3f}" for millimeters in position[:3]), *map(str, detected.box)]


@dataclass(frozen=True)
class WrittenObjects(LabeledObjects):
    """Objects that prediction wrote, with their classes.

    Args:
        mask: the label image.
        table: the table of its objects.
        names: the classes of objects.
    """

    mask: Path
    table: Path
    names: tuple[str, ...]

    def render(self) -> np.ndarray:
        numbers = read_mask(self.mask, str(self.mask))
        classes = np.zeros(int(numbers.max()) + 1, np.int64)
        for row in table_rows(self.table, IMAGE_COLUMNS):
            number = int(row["number"])
            if not 0 < number < len(classes) or row["class"] not in self.names:
                raise DataError(f"{self.table}: object {number} is not one of {self.mask}; {REMEDY}")
            classes[number] = self.names.index(row["class"]) + 1
        return pack_labels(numbers, classes[numbers])
