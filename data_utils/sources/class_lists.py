"""What `classes.csv` and `classes.txt` say: the classes that images are labeled for."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from data_utils.image_io.formats import IMAGE_SUFFIXES
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from data_utils.sources.records import LabelSet
from data_utils.sources.spelling import composed
from data_utils.sources.walk import walk
from runtime.console import listing
from runtime.documents import parse_csv, read_bytes
from runtime.errors import DataError, one_line

SUFFIXES = tuple(sorted((*IMAGE_SUFFIXES, *VOLUME_SUFFIXES), key=len, reverse=True))
DELIMITERS = (",", ";", "\t")
SEPARATORS = (";", "|", "\t")  # separators between classes, beside a comma
IMAGE_TITLES = ("image", "filename", "file")
CLASSES_TITLES = ("classes", "labels")
YES = ("1", "1.0", "true", "yes", "y", "x")
NO = ("0", "0.0", "false", "no", "n", "-", "")
EXPECTED = "expected image,classes or image and a column for each class"
LENGTH = 80  # characters of a cell that a message shows


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
            close_stems = get_close_matches(_stem(unknown[0].image[:LENGTH]), stems, n=1)
            hint = f"; did you mean {close_stems[0]}?" if close_stems else ""
            problem_list = listing(texts, separator="; ")
            raise DataError(f"{self.file} names images that are not there: {problem_list}{hint}")

    def _stems(self) -> set[str]:
        """The names that rows may have for the image files below the folder of the table."""
        stems: set[str] = set()
        for parent, _, names in walk(self.file.parent):
            below = os.path.relpath(parent, self.file.parent).replace(os.sep, "/")
            for name in names:
                if name.lower().endswith(SUFFIXES):
                    stems.update(_tails(_stem(f"{below}/{name}".removeprefix("./"))))
        return stems


def read_table(file: Path) -> Table:
    """A `classes.csv`. Raises DataError, with the file and the line, for an invalid file."""
    text = _read_text(file)
    title, _, _ = text.partition("\n")
    delimiter = next((sign for sign in DELIMITERS if _cells(title, sign)[0].lower() in IMAGE_TITLES), None)
    if delimiter is None:
        raise DataError(
            f"{file}: its first line is {title.strip()[:LENGTH]!r}, {EXPECTED}; if it holds something else, rename it"
        )
    rows: dict[str, Row] = {}
    try:
        (_, first_cells), *others = parse_csv(text, delimiter, strict=True)
    except ValueError as error:
        raise DataError(f"{file} is no table ({one_line(error)})") from error
    titles = _strip(first_cells)
    _check_titles(file, titles)
    for line, cells in others:
        row = _row(titles, _strip(cells), f"{file}: line {line}", line)
        first = rows.setdefault(_stem(row.image), row)
        if first is not row:
            raise DataError(f"{file}: lines {first.line} and {row.line} both speak of {row.image[:LENGTH]!r}")
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


def _row(titles: Sequence[str], cells: Sequence[str], location: str, line: int) -> Row:
    """The row of these cells; raises DataError, with `location`, if they do not match the first line."""
    image = cells[0].replace("\\", "/").removeprefix("./")
    if not image:
        raise DataError(f"{location} names no image")
    if len(titles) == 2 and titles[1].lower() in CLASSES_TITLES:
        return Row(line, image, _split_names(",".join(cells[1:])))
    if len(cells) > len(titles):
        raise DataError(f"{location} has {len(cells)} cells, the first line {len(titles)}")
    names = []
    for title, cell in zip(titles[1:], cells[1:], strict=False):  # cells that a short row lacks are empty
        if cell.lower() not in (*YES, *NO):
            raise DataError(f"{location} has {cell[:LENGTH]!r} for {title[:LENGTH]}, expected 1 or 0")
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
        raise DataError(f"{file} cannot be read as text ({one_line(error)}); save it as UTF-8, or rename it") from error


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
    """A name without the extension of an image or a volume, `composed`."""
    name = composed(name)
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
