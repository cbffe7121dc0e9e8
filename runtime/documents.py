"""JSON, YAML and CSV of unknown origin: any file gives either a value or a ValueError with the reason."""

import csv
import io
import json
import os
import re
import stat
from codecs import StreamWriter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

Root = type | tuple[type, ...]


NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would otherwise wait for a writer
MOST_BYTES = 2**26  # the largest file with settings or descriptions
MOST_BYTES_OF_DATA = 2**32  # the largest file that holds a data set, such as the annotations of all images
MOST_BYTES_OF_YAML = 2**20
MOST_LEVELS = 64  # the deepest nesting of lists and objects
TOO_DEEP = f"it is nested deeper than {MOST_LEVELS} levels"
MOST_DIGITS = 300  # whole numbers of more digits may not fit into a float
HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")  # a surrogate as JSON writes it, which is valid text only in a pair
# the beginning of a formula (owasp.org/www-community/attacks/CSV_Injection), maybe behind apostrophes; a protected cell
FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
PROTECTED = re.compile("'" + FORMULA.pattern)
ROOT_NAMES: dict[type, str] = {dict: "an object", list: "a list", tuple: "a list"}


def check_regular(file: str | Path | int) -> None:
    """Raises OSError for a pipe or a device, which may never end; also for files that a library opens by their name."""
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise OSError("it is not a regular file")


@contextmanager
def open_regular(file: str | Path) -> Iterator[BinaryIO]:
    """Open a file of somebody else to read from. Raises OSError as `check_regular` does."""
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | NO_WAIT)) as stream:
        check_regular(stream.fileno())
        yield stream


def read_bytes(file: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file. Raises OSError for other kinds of files, ValueError for more than `most_bytes`."""
    with open_regular(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most_bytes:
            raise ValueError(f"it has {size:,} bytes, more than {most_bytes:,}")
        return stream.read()


def read_json(file: str | Path, root: Root = dict, most_bytes: int = MOST_BYTES) -> Any:
    """The value of a JSON file, of type `root`. Raises OSError, and ValueError as `parse_json` does."""
    return parse_json(read_bytes(file, most_bytes), root)


def parse_json(content: bytes | str, root: Root = dict, *, as_pairs: bool = False) -> Any:
    """The value of a JSON text, of type `root`.

    Raises ValueError if the text is not JSON, is nested too deeply, or has numbers too large for a float or unpaired
    surrogates.

    Args:
        as_pairs: whether objects become tuples of (key, value), which keep a key that occurs twice.
    """
    text = content
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    pairs = tuple if as_pairs else None
    try:
        value = json.loads(text, parse_int=_whole_number, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    holds_half = HALF_CHARACTER.search(text) is not None
    return _checked(value, root, holds_half)


def parse_csv(text: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Each row that is not empty, with the number of the line that it begins in. Raises ValueError with a line.

    A cell that `write_row` has protected is given back as it was. A quote that is never closed is an error.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for row in reader:
            if any(row):
                yield line, [cell[1:] if PROTECTED.match(cell) else cell for cell in row]
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"line {line}: {error}") from error


def write_row(text: TextIO | StreamWriter, cells: Iterable[object]) -> None:
    """Write a row of CSV that `parse_csv` gives back, and that a spreadsheet shows and does not compute.

    Numbers stay as they are. Other cells that a spreadsheet would take for a formula get an apostrophe before them.
    """
    row = io.StringIO()
    # Python before 3.13 quotes a carriage return only where it is part of the end of a line
    csv.writer(row, lineterminator="\r\n").writerow(map(_protected, cells))
    text.write(row.getvalue()[:-2] + "\n")


def _protected(cell: object) -> str:
    text = "" if cell is None else str(cell)
    try:
        float(text)
    except ValueError:
        if FORMULA.match(text):
            return f"'{text}"
    return text


def text_lines(text: str) -> list[str]:
    """The lines of a text as an editor shows them; other signs than line breaks end none, as in `str.splitlines`."""
    return [line.rstrip("\n") for line in io.StringIO(text, newline=None)]


def as_json(value: Any) -> Any:
    """A value as it is after JSON has written and read it: tuples become lists, and paths become texts."""
    return json.loads(json.dumps(value, default=str))


def read_yaml(file: str | Path, root: Root = dict) -> Any:
    """The value of a YAML file, of type `root`; numbers, dates and truth values stay the texts that stand there.

    Raises OSError, and ValueError for invalid YAML and for aliases, which could expand to many copies.
    """
    import yaml

    content = read_bytes(file, MOST_BYTES_OF_YAML)
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content, yaml.BaseLoader)):
            raise ValueError("it has an alias; write the content out")
        value = yaml.load(content, yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    return _checked(value, root)


def _whole_number(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"it has a number of {len(text):,} digits")
    return int(text)


def _checked(value: Any, root: Root, holds_half: bool = True) -> Any:
    """The value, which is a `root` and not nested too deeply for recursive functions. Raises ValueError if it is not.

    Args:
        holds_half: whether texts may hold half a character, which no file can hold.
    """
    if not isinstance(value, root):
        first = root[0] if isinstance(root, tuple) else root
        raise ValueError(f"it holds a {type(value).__name__}, expected {ROOT_NAMES.get(first, first.__name__)}")
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        below: list[Any] = []
        for container in level:
            entries = container.values() if isinstance(container, dict) else container
            below += [entry for entry in entries if type(entry) in (dict, list, tuple)]
        level = below
    if level:
        raise ValueError(TOO_DEEP)
    if holds_half:
        json.dumps(value, ensure_ascii=False).encode()  # a UnicodeEncodeError is a ValueError
    return value
