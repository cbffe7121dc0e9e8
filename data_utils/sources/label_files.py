"""Which classes an image is labeled for: `classes.csv` beside the images, `classes.txt` in a folder of them.

A file holds names of classes. The reader of targets checks that the data set has such classes.
"""

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.image_io.formats import IMAGE_SUFFIXES, ImageSource, VolumeFile
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from data_utils.sources.records import DerivedRecords, LabelSet, Record, Records
from data_utils.sources.walk import walk
from runtime.console import listing
from runtime.documents import read_bytes
from runtime.errors import DataError, one_line

TABLE = "classes.csv"
RULE = "classes.txt"
SUFFIXES = tuple(sorted((*IMAGE_SUFFIXES, *VOLUME_SUFFIXES), key=len, reverse=True))
DELIMITERS = (",", ";", "\t")
SEPARATORS = (";", "|", "\t")  # separators between classes, beside a comma
IMAGE_TITLES = ("image", "filename", "file")
CLASSES_TITLES = ("classes", "labels")
YES = ("1", "1.0", "true", "yes", "y", "x")
NO = ("0", "0.0", "false", "no", "n", "-", "")
EXPECTED = "expected image,classes or image and a column for each class"
LENGTH = 80  # characters of a cell that a message shows
ALL = -1  # the number of an image that is labeled for all classes


class ImageLabels(NamedTuple):
    """The classes that an image is labeled for, and the place (file, line) that lists them."""

    classes: LabelSet
    where: str


class Row(NamedTuple):
    """A row of a table: its line in the file, the image as it is written there, and the classes."""

    line: int
    image: str
    classes: LabelSet


@dataclass
class Table:
    """A `classes.csv`.

    Args:
        rows: the rows by the name of the image, without its extension.
        images: the image that each row was matched with.
    """

    file: Path
    rows: dict[str, Row]
    images: dict[str, str] = field(default_factory=dict)

    def find(self, image: str, name: str) -> Row | None:
        """The row of an image whose record is called `name`; a row may hold only the end of the image's path."""
        below = _stem(os.path.relpath(image, self.file.parent).replace(os.sep, "/"))
        folder = os.path.dirname(below)
        # a different name belongs to a page of a file, or to a volume of several files
        page = "/".join(filter(None, (folder, os.path.basename(_stem(name)))))
        for key in (*_tails(below), *_tails(page)):
            row = self.rows.get(key)
            if row is None:
                continue
            first_image = self.images.setdefault(key, image)
            if first_image != image:
                raise DataError(
                    f"{self.file}: line {row.line}: {row.image[:LENGTH]!r} is the name of {first_image} and of {image};"
                    " write the folder too"
                )
            return row
        return None

    def check_rows(self) -> None:
        """Raises DataError for rows that match no image."""
        unused = [key for key in self.rows if key not in self.images]
        if not unused:
            return
        stems = self._stems()  # there may be images of another split, or without a mask
        unknown = [self.rows[key] for key in unused if key not in stems]
        if unknown:
            texts = [f"line {row.line}: {row.image[:LENGTH]!r}" for row in unknown]
            close = get_close_matches(_stem(unknown[0].image[:LENGTH]), stems, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            listed = listing(texts, separator="; ")
            raise DataError(f"{self.file} names images that are not there: {listed}{hint}")

    def _stems(self) -> set[str]:
        """The names that rows may have for the image files below the folder of the table."""
        stems: set[str] = set()
        for parent, _, names in walk(self.file.parent):
            below = os.path.relpath(parent, self.file.parent).replace(os.sep, "/")
            for name in names:
                if name.lower().endswith(SUFFIXES):
                    stems.update(_tails(_stem(f"{below}/{name}".removeprefix("./"))))
        return stems


class LabelFiles:
    """The label files of a data set; each is read when an image that it may list is asked for.

    Args:
        root: the folder of the data set; files above it are not read.
        reads_rules: whether a `classes.txt` is one of them.
    """

    def __init__(self, root: Path, *, reads_rules: bool) -> None:
        self.root = root
        self.reads_rules = reads_rules
        self._tables: dict[Path, Table | None] = {}
        self._rules: dict[Path, ImageLabels | None] = {}
        # each for one folder of images after another
        self.table_of = lru_cache(maxsize=None)(self._find_table)
        self._rule_of = lru_cache(maxsize=None)(self._find_rule)

    @property
    def tables(self) -> list[Table]:
        """The tables that were read."""
        return [table for table in self._tables.values() if table is not None]

    def speak_of(self, records: Records) -> bool:
        """Whether any label file may list any image of the records."""
        for folder, below in records.image_folders():
            if self.table_of(Path(folder, below)) or self._rule_of(Path(folder), below):
                return True
        return False

    def find(self, image: str, name: str) -> ImageLabels | None:
        """The labels of an image from the label files; a table comes before a rule."""
        folder = os.path.dirname(image)
        table = self.table_of(Path(folder))
        row = None if table is None else table.find(image, name)
        if table is not None and row is not None:
            return ImageLabels(row.classes, f"{table.file}: line {row.line}")
        below = os.path.dirname(name)
        return self._rule_of(Path(folder.removesuffix(below)), below)

    def _find_table(self, folder: Path) -> Table | None:
        """The table for the images of a folder, in the folder or above it. Raises DataError if there are two."""
        tables: list[Table] = []
        for above in self._up_to_root(folder):
            if above not in self._tables:
                file = above / TABLE
                self._tables[above] = read_table(file) if file.exists() else None
            table = self._tables[above]
            if table is not None:
                tables.append(table)
        if len(tables) > 1:
            raise DataError(f"{tables[0].file} and {tables[1].file} speak of the same images; keep one")
        return tables[0] if tables else None

    def _find_rule(self, folder: Path, below: str) -> ImageLabels | None:
        """The classes of the images in `below`, a folder in `folder`, which holds all images of a split.

        The file is in `below`, or in a folder of the same name beside or above `folder`: `images/site/classes.txt`,
        `site/classes.txt`; or above `folder`. A file in the root, or in the folder of all images, is not a rule:
        programs write such lists of classes there.
        """
        if not self.reads_rules:
            return None
        folders: list[Path] = []
        site = Path(below)
        while site != Path("."):
            folders += [above / site for above in self._up_to_root(folder)]
            site = site.parent
        folders += self._up_to_root(folder.parent)[:-1]
        for candidate in folders:
            file = candidate / RULE
            if candidate not in self._rules:
                self._rules[candidate] = ImageLabels(read_rule(file), str(file)) if file.exists() else None
            if self._rules[candidate] is not None:
                return self._rules[candidate]
        return None

    def _up_to_root(self, folder: Path) -> list[Path]:
        """A folder and the folders above it, the root last; empty if it does not lie in the root."""
        folders = [folder, *folder.parents]
        if self.root not in folders:
            return []
        return folders[: folders.index(self.root) + 1]


class LabeledRecords(DerivedRecords):
    """Records, some of which are labeled for some of the classes only.

    Args:
        records: the same records without label sets.
        sets: the different sets of classes, each with the first place that lists it.
        numbers: (N,) int32, the index of each record's set; `ALL` for a record that is labeled for all classes.
        unlisted: names of records that are missing in the `classes.csv` of their folder.
    """

    def __init__(
        self, records: Records, sets: dict[LabelSet, str], numbers: np.ndarray, unlisted: Sequence[str]
    ) -> None:
        super().__init__(records)
        self.metadata = replace(records.metadata, label_sets=sets, unlisted=tuple(unlisted))
        self.numbers = numbers
        self._sets = list(sets)

    def derivation(self) -> tuple[object, ...]:
        return ("labeled", self._sets, self.numbers.tobytes())

    def __getitem__(self, i: int) -> Record:
        record = self.records[i]
        labeled = self.labeled(i)
        return record if labeled is None else {**record, "labeled": labeled}

    def labeled(self, i: int) -> LabelSet | None:
        number = int(self.numbers[i])
        return None if number == ALL else self._sets[number]


def read_label_files(splits: Sequence[Records], root: Path) -> list[Records]:
    """The records of all splits of a folder, with the classes that each is labeled for.

    Raises DataError for files that cannot be understood, and for rows that match no image or two images.
    """
    files = LabelFiles(root, reads_rules=all(records.metadata.has_rules for records in splits))
    labeled = [_labeled(records, files) for records in splits]
    for table in files.tables:
        table.check_rows()
    return labeled


def _labeled(records: Records, files: LabelFiles) -> Records:
    """The records with their label sets from label files; unchanged if no file lists them."""
    if not files.speak_of(records):
        return records
    labels: list[ImageLabels | None] = []
    unlisted: list[str] = []
    for i, record in enumerate(records):
        image = _path(record["image"])
        image_labels = files.find(image, record["name"])
        if image_labels is None and files.table_of(Path(image).parent) is not None:
            unlisted.append(record["name"])
        classes = records.labeled(i)
        if image_labels is None and classes is not None:
            image_labels = ImageLabels(classes, records.metadata.label_sets[classes])
        labels.append(image_labels)
    return with_labels(records, labels, unlisted)


def with_labels(records: Records, labels: Sequence[ImageLabels | None], unlisted: Sequence[str] = ()) -> Records:
    """The records with the label set of each, None for all classes; unchanged if all have all classes."""
    sets: dict[LabelSet, str] = {}
    number_of: dict[LabelSet, int] = {}
    numbers = np.full(len(labels), ALL, np.int32)
    for i, image_labels in enumerate(labels):
        if image_labels is not None:
            sets.setdefault(image_labels.classes, image_labels.where)
            numbers[i] = number_of.setdefault(image_labels.classes, len(number_of))
    if not sets and not unlisted:
        return records
    return LabeledRecords(records, sets, numbers, unlisted)


def read_table(file: Path) -> Table:
    """A `classes.csv`. Raises DataError, with the file and the line, for an invalid file."""
    text = _read_text(file)
    title, _, _ = text.partition("\n")
    delimiter = next((sign for sign in DELIMITERS if _cells(title, sign)[0].lower() in IMAGE_TITLES), None)
    if delimiter is None:
        raise DataError(
            f"{file}: its first line is {title.strip()[:LENGTH]!r}, {EXPECTED}; if it holds something else, rename it"
        )
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: dict[str, Row] = {}
    try:
        titles = _strip(next(reader))
        _check_titles(file, titles)
        for cells in reader:
            if any(cells):
                row = _row(titles, _strip(cells), f"{file}: line {reader.line_num}", reader.line_num)
                first = rows.setdefault(_stem(row.image), row)
                if first is not row:
                    raise DataError(f"{file}: lines {first.line} and {row.line} both speak of {row.image[:LENGTH]!r}")
    except csv.Error as error:
        raise DataError(f"{file}: line {reader.line_num} is no line of a table ({one_line(error)})") from error
    if not rows:
        raise DataError(f"{file} names no image; remove it, or write a row for each")
    return Table(file, rows)


def _check_titles(file: Path, titles: Sequence[str]) -> None:
    """Raises DataError for a first line without classes, or with a class that occurs twice or has no name."""
    if len(titles) < 2:
        raise DataError(f"{file}: its first line is {titles[0]!r} alone, {EXPECTED}")
    for number, title in enumerate(titles):
        if not title or title in titles[:number]:
            raise DataError(f"{file}: column {number + 1} is called {title[:LENGTH]!r}: a class has a name of its own")


def _row(titles: Sequence[str], cells: Sequence[str], where: str, line: int) -> Row:
    """The row of these cells; raises DataError, with `where`, if they do not match the first line."""
    image = cells[0].replace("\\", "/").removeprefix("./")
    if not image:
        raise DataError(f"{where} names no image")
    if len(titles) == 2 and titles[1].lower() in CLASSES_TITLES:
        return Row(line, image, _split_names(",".join(cells[1:])))
    if len(cells) > len(titles):
        raise DataError(f"{where} has {len(cells)} cells, the first line {len(titles)}")
    names = []
    for title, cell in zip(titles[1:], cells[1:], strict=False):  # cells that a short row lacks are empty
        if cell.lower() not in (*YES, *NO):
            raise DataError(f"{where} has {cell[:LENGTH]!r} for {title[:LENGTH]}, expected 1 or 0")
        if cell.lower() in YES:
            names.append(title)
    return Row(line, image, tuple(sorted(names)))


def read_rule(file: Path) -> LabelSet:
    """The classes of a `classes.txt`: a name a line."""
    names = _split_names(_read_text(file).replace("\n", ","))
    if not names:
        raise DataError(f"{file} is empty; write the classes that the images of its folder are labeled for, one a line")
    return names


def _read_text(file: Path) -> str:
    try:
        return read_bytes(file).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as text ({one_line(error)})") from error


def _split_names(text: str) -> LabelSet:
    """Names with commas or other separators between them, in order, each once."""
    for separator in SEPARATORS:
        text = text.replace(separator, ",")
    names = {name.strip() for name in text.split(",")}
    return tuple(sorted(filter(None, names)))


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of a first line, approximately."""
    return [cell.strip().strip('"') for cell in line.split(delimiter)]


def _strip(cells: Sequence[str]) -> list[str]:
    """The cells without spaces around them, and without empty ones at the end, which spreadsheets leave."""
    stripped = [cell.strip() for cell in cells]
    while len(stripped) > 1 and not stripped[-1]:
        stripped.pop()
    return stripped


def _stem(name: str) -> str:
    """A name without the extension of an image or a volume."""
    for suffix in SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


def _tails(path: str) -> Iterator[str]:
    """A path, then without its leading folders, one by one."""
    yield path
    while "/" in path:
        _, _, path = path.partition("/")
        yield path


def _path(source: ImageSource) -> str:
    """The file of an image, or the first of a volume's."""
    if isinstance(source, VolumeFile):
        return source.paths[0]
    if isinstance(source, dict):
        return source["path"]
    return source if isinstance(source, str) else ""
