"""Which classes an image is labeled for: `classes.csv` beside the images, `classes.txt` in a folder of them.

A file holds names of classes. The reader of targets checks that the data set has such classes.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.image_io.formats import ImageSource, source_files
from data_utils.sources.class_lists import Table, read_rule, read_table
from data_utils.sources.records import DerivedRecords, LabelSet, Record, Records
from runtime.errors import DataError

TABLE = "classes.csv"
RULE = "classes.txt"
ALL = -1  # the number of an image that is labeled for all classes


class ImageLabels(NamedTuple):
    """The classes that an image is labeled for, and the place (file, line) that lists them."""

    classes: LabelSet
    location: str


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
        self.folder_table = lru_cache(maxsize=None)(self._find_table)
        self._folder_rule = lru_cache(maxsize=None)(self._find_rule)

    @property
    def tables(self) -> list[Table]:
        """The tables that were read."""
        return [table for table in self._tables.values() if table is not None]

    def may_list(self, records: Records) -> bool:
        """Whether any label file may list any image of the records."""
        for folder, below in records.image_folders():
            if self.folder_table(Path(folder, below)) or self._folder_rule(Path(folder), below):
                return True
        return False

    def find(self, image: str, name: str) -> ImageLabels | None:
        """The labels of an image from the label files; a table comes before a rule."""
        folder = os.path.dirname(image)
        table = self.folder_table(Path(folder))
        row = None if table is None else table.find(image, name)
        if table is not None and row is not None:
            return ImageLabels(row.classes, f"{table.file}: line {row.line}")
        below = os.path.dirname(name)
        return self._folder_rule(Path(folder.removesuffix(below)), below)

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
        labeled = self.label_set(i)
        return record if labeled is None else {**record, "labeled": labeled}

    def label_set(self, i: int) -> LabelSet | None:
        number = int(self.numbers[i])
        return None if number == ALL else self._sets[number]


def read_label_files(splits: Sequence[Records], root: Path) -> list[Records]:
    """The records of all splits of a folder, with the classes that each is labeled for.

    Raises DataError for files that cannot be understood, and for rows that match no image or two images.
    """
    files = LabelFiles(root, reads_rules=all(records.metadata.has_rules for records in splits))
    labeled = [_label_records(records, files) for records in splits]
    for table in files.tables:
        table.check_rows()
    return labeled


def _label_records(records: Records, files: LabelFiles) -> Records:
    """The records with their label sets from label files; unchanged if no file lists them."""
    if not files.may_list(records):
        return records
    labels: list[ImageLabels | None] = []
    unlisted: list[str] = []
    for i, record in enumerate(records):
        image = _path(record["image"])
        image_labels = files.find(image, record["name"])
        if image_labels is None and files.folder_table(Path(image).parent) is not None:
            unlisted.append(record["name"])
        classes = records.label_set(i)
        if image_labels is None and classes is not None:
            image_labels = ImageLabels(classes, records.metadata.label_sets[classes])
        labels.append(image_labels)
    return with_labels(records, labels, unlisted)


def with_labels(records: Records, labels: Sequence[ImageLabels | None], unlisted: Sequence[str] = ()) -> Records:
    """The records with the label set of each, None for all classes; unchanged if all have all classes."""
    sets: dict[LabelSet, str] = {}
    number_by_set: dict[LabelSet, int] = {}
    numbers = np.full(len(labels), ALL, np.int32)
    for i, image_labels in enumerate(labels):
        if image_labels is not None:
            sets.setdefault(image_labels.classes, image_labels.location)
            numbers[i] = number_by_set.setdefault(image_labels.classes, len(number_by_set))
    if not sets and not unlisted:
        return records
    return LabeledRecords(records, sets, numbers, unlisted)


def _path(source: ImageSource) -> str:
    """The file of an image, or the first of a volume's; "" for an image that has none."""
    files = source_files(source)
    return files[0] if files else ""
