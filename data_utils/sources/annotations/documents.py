"""Files of annotations and points: one error for those that cannot be read, and what JSON files are by their keys."""

import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from runtime.documents import MOST_BYTES_OF_DATA, Root, open_regular, parse_csv, read_bytes, read_json, text_lines
from runtime.errors import DataError, UserError, one_line

# keys that tell JSON files apart: those of labelme, where "shapes" may come after an image of many MB, and of COCO,
# where "images" are a list; in our metrics.json they are a number
TELLING_KEYS = re.compile(rb'"(shapes|imageData|imagePath|images(?="\s*:\s*\[)|keypoints|segments_info)"\s*:')
SEPARATORS = ",;\t"  # between the cells of a table; its first line holds the right one most often


@contextmanager
def reading(file: str | Path, kind: str) -> Iterator[None]:
    """A context in which a file that cannot be opened, or is not of a kind, becomes a DataError with its name."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None  # without the path, which stands there already
        raise DataError(f"{file} cannot be read as {kind} ({reason or one_line(error)})") from error


def json_of(file: str | Path, root: Root = dict) -> Any:
    """The value of a JSON file, of type `root`. Raises DataError."""
    with reading(file, "JSON"):
        return read_json(file, root, MOST_BYTES_OF_DATA)


def text_of(file: str | Path) -> str:
    """The text of a file. Raises DataError."""
    with reading(file, "text"):
        return read_bytes(file, MOST_BYTES_OF_DATA).decode("utf-8-sig")


def lines_of(file: str | Path) -> list[str]:
    """The lines of a text file, none if its name is empty. Raises DataError."""
    return text_lines(text_of(file)) if file else []


def rows_of(file: str | Path) -> tuple[list[tuple[int, list[str]]], str]:
    """The rows of a table, each with the line that it begins in, and the sign between its cells. Raises DataError."""
    with reading(file, "CSV"):
        text = read_bytes(file, MOST_BYTES_OF_DATA).decode("utf-8-sig")
        separator = max(SEPARATORS, key=text.partition("\n")[0].count)
        rows = list(parse_csv(text, separator))
        if rows and rows[0][1] == ["sep=", ""]:  # for Excel
            del rows[0]
        return rows, separator


def keys_in(file: str | Path) -> frozenset[bytes]:
    """The telling keys in a JSON file, which may be too large to be read in vain; none if it cannot be opened.

    A file is looked through once, until it changes: finders of several formats ask.
    """
    try:
        return _keys_in(str(file), os.stat(file).st_mtime_ns)
    except (OSError, ValueError):  # an empty file cannot be mapped
        return frozenset()


@lru_cache(maxsize=1024)
def _keys_in(file: str, changed: int) -> frozenset[bytes]:
    with open_regular(file) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return frozenset(TELLING_KEYS.findall(content))
