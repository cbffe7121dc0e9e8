"""Which classes an image is labeled for: `classes.csv` beside the images or above, `classes.txt` in a folder of them.

A file holds names of classes. The reader of targets checks that the data set has such classes.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.image_io.formats import source_files
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from data_utils.sources.annotations.documents import rows_of, text_of
from data_utils.sources.folder import composed, files_below
from data_utils.sources.records import ALL, UNLISTED, LabelSet, Records, describe
from runtime.console import listing
from runtime.errors import DataError

TABLE = "classes.csv"
RULE = "classes.txt"
SUFFIXES = tuple(sorted((*IMAGE_SUFFIXES, *VOLUME_SUFFIXES), key=len, reverse=True))
IMAGE_TITLES = ("image", "filename", "file")
CLASSES_TITLES = ("classes", "labels")
BETWEEN_NAMES = re.compile(r"[,;|\t\n]")
YES = ("1", "1.0", "true", "yes", "y", "x")
NO = ("0", "0.0", "false", "no", "n", "-", "")
LENGTH = 80  # characters of a cell that a message shows


class ImageLabels(NamedTuple):
    """The classes that an image is labeled for, and the place (file, line) that lists them."""

    classes: LabelSet
    location: str


class Table(NamedTuple):
    """A `classes.csv`.

    Args:
        rows: the labels of each image by its name as the table has it, without extension.
        images: the image that each row was matched with.
    """

    file: Path
    rows: dict[str, ImageLabels]
    images: dict[str, str]

    def find(self, image: str, name: str) -> ImageLabels | None:
        """The labels of an image whose record is called `name`; a row may hold only the end of the image's path."""
        below = _stem(os.path.relpath(image, self.file.parent).replace(os.sep, "/"))
        # a different name belongs to a page of a file, or to a volume of several files
        page = os.path.join(os.path.dirname(below), os.path.basename(_stem(name)))
        for key in (*_tails(below), *_tails(page)):
            if key not in self.rows:
                continue
            first_image = self.images.setdefault(key, image)
            if first_image != image:
                location = self.rows[key].location
                raise DataError(
                    f"{location}: {key[:LENGTH]!r} is the name of {first_image} and of {image}; write the folder too"
                )
            return self.rows[key]
        return None

    def check_rows(self) -> None:
        """Raises DataError for rows that match no image, not even one of another split or without a mask."""
        if len(self.images) == len(self.rows):
            return
        stems: set[str] = set()
        for file in files_below(self.file.parent, SUFFIXES, strict=False):
            stems.update(_tails(_stem(file)))
        unknown = [key for key in self.rows if key not in stems and key not in self.images]
        if unknown:
            texts = [f"{self.rows[key].location.rpartition(': ')[2]}: {key[:LENGTH]!r}" for key in unknown]
            raise DataError(f"{self.file} names images that are not there: {listing(texts, separator='; ')}")


def read_table(file: Path) -> Table:
    """A `classes.csv`. Raises DataError, with the file and the line, for an invalid file."""
    lines, separator = rows_of(file)
    titles = _strip(lines[0][1]) if lines else [""]
    first_line = separator.join(titles)
    if titles[0].lower() not in IMAGE_TITLES or "" in titles or len({*titles}) < max(2, len(titles)):
        raise DataError(
            f"{file}: its first line is {first_line[:LENGTH]!r}, expected image,classes or image and a column"
            " for each class; if it holds something else, rename it"
        )
    rows: dict[str, ImageLabels] = {}
    for line, cells in lines[1:]:
        location = f"{file}: line {line}"
        image, *values = _strip(cells)
        key = _stem(image.replace("\\", "/").removeprefix("./"))
        if not key:
            raise DataError(f"{location} names no image")
        if key in rows:
            raise DataError(f"{rows[key].location} and line {line} both speak of {image[:LENGTH]!r}")
        rows[key] = ImageLabels(_classes(titles[1:], values, location), location)
    if not rows:
        raise DataError(f"{file} names no image; remove it, or write a row for each")
    return Table(file, rows, {})


def _classes(titles: Sequence[str], values: Sequence[str], location: str) -> LabelSet:
    """The classes of a row: names in cells below one title, or yes and no below the name of each class."""
    if len(titles) == 1 and titles[0].lower() in CLASSES_TITLES:
        return _split_names(",".join(values))
    if len(values) > len(titles):
        raise DataError(f"{location} has {len(values) + 1} cells, the first line {len(titles) + 1}")
    names = []
    for title, value in zip(titles, values, strict=False):  # cells that a short row lacks are empty
        if value.lower() not in (*YES, *NO):
            raise DataError(f"{location} has {value[:LENGTH]!r} for {title[:LENGTH]}, expected 1 or 0")
        if value.lower() in YES:
            names.append(title)
    return tuple(sorted(names))


def _split_names(text: str) -> LabelSet:
    """Names with commas or other separators between them, in order, each once."""
    names = {name.strip() for name in BETWEEN_NAMES.split(text)}
    return tuple(sorted(filter(None, names)))


def _strip(cells: Sequence[str]) -> list[str]:
    """The cells without spaces around them, and without empty ones at the end, which spreadsheets leave."""
    stripped = [cell.strip() for cell in cells]
    while len(stripped) > 1 and not stripped[-1]:
        stripped.pop()
    return stripped


def _stem(name: str) -> str:
    """A name without the extension of an image or a volume, `composed`."""
    name = composed(name)
    ending = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(ending)]


def _tails(path: str) -> Iterator[str]:
    """A path, then without its leading folders, one by one."""
    yield path
    while "/" in path:
        _, _, path = path.partition("/")
        yield path


def read_label_files(splits: Sequence[Records], root: Path) -> list[Records]:
    """The records of all splits of a folder, with the classes that each is labeled for.

    Raises DataError for files that cannot be understood, and for rows that match no image or two images.
    """
    tables: dict[Path, Table] = {}
    labeled_splits = [_label_records(records, root, tables) for records in splits]
    for table in tables.values():
        table.check_rows()
    return labeled_splits


def _label_records(records: Records, root: Path, tables: dict[Path, Table]) -> Records:
    """The records with their label sets from the table and the rule of each folder; a table comes before a rule.

    Tables that have been read are in `tables`.
    """
    files_by_folder: dict[str, tuple[Table | None, ImageLabels | None]] = {}
    for folder, below in records.rows.image_folders:
        images = Path(folder, below)
        table = _find_table(images, root, tables)
        is_yolo = records.metadata.annotations == "YOLO"  # whose classes.txt names the classes
        rule = None if is_yolo else _find_rule(Path(folder), below, root)
        if table or rule:
            files_by_folder[str(images)] = table, rule
    if not files_by_folder:
        return records
    all_labels: list[ImageLabels | None] = []
    unlisted: list[int] = []
    for i, record in enumerate(records):
        image, *_ = source_files(record["image"])
        table, rule = files_by_folder.get(os.path.dirname(image), (None, None))
        labels = (table and table.find(image, record["name"])) or rule
        classes = records.label_set(i)
        if labels is None and classes is not None:
            labels = ImageLabels(classes, records.metadata.label_sets[classes])
        if table and labels is None:
            unlisted.append(i)
        all_labels.append(labels)
    return with_labels(records, all_labels, unlisted)


def _find_table(folder: Path, root: Path, tables: dict[Path, Table]) -> Table | None:
    """The table for the images of a folder, in the folder or above it, up to the `root` of the data set.

    Raises DataError if there are two.
    """
    parents = [parent for parent in (folder, *folder.parents) if parent.is_relative_to(root)]
    files = [parent / TABLE for parent in parents if (parent / TABLE).exists()]
    if len(files) > 1:
        raise DataError(f"{files[0]} and {files[1]} speak of the same images; keep one")
    for file in files:
        tables[file] = tables.get(file) or read_table(file)
    return tables[files[0]] if files else None


def _find_rule(folder: Path, below: str, root: Path) -> ImageLabels | None:
    """The classes of the images in `below`, a folder in `folder`, which holds all images of a split: a name a line.

    The file lies beside the images, or in a folder of their folder's name in the data set: `images/site/classes.txt`,
    `site/classes.txt`. A file in a folder of all images is not a rule: programs write lists of all classes there.
    Raises DataError for an empty file, and for one that lies further up and may be meant.
    """
    if not below or not folder.is_relative_to(root):
        return None
    for file in filter(Path.exists, (folder / below / RULE, root / below / RULE)):
        names = _split_names(text_of(file))
        if not names:
            raise DataError(f"{file} is empty; write the classes that the images beside it are labeled for, one a line")
        return ImageLabels(names, str(file))
    top, _, deeper = below.partition("/")
    if deeper and (folder / top / RULE).exists():
        raise DataError(f"{folder / top / RULE} is for the images beside it; copy it to {folder / below} too")
    return None


def with_labels(records: Records, labels: Sequence[ImageLabels | None], unlisted: Sequence[int] = ()) -> Records:
    """The records with the label set of each, None for all classes; unchanged if all have all classes.

    `unlisted` are records without labels that are missing in the `classes.csv` of their folder.
    """
    locations: dict[LabelSet, str] = {}
    for each in labels:
        if each is not None:
            locations.setdefault(each.classes, each.location)
    if not locations and not unlisted:
        return records
    number_by_set = {classes: number for number, classes in enumerate(locations)}
    numbers = np.array([ALL if each is None else number_by_set[each.classes] for each in labels], np.int32)
    numbers[np.array(unlisted, np.int64)] = UNLISTED
    return describe(records, numbers, label_sets=locations)
