"""Files of annotations and points: one error for those that cannot be read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.documents import MOST_BYTES_OF_DATA, Root, read_bytes, read_json, text_lines
from runtime.errors import DataError, UserError, one_line


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
