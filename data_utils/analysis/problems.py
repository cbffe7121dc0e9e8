"""The problems for which records cannot be used, and how lines on them are merged."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from data_utils.mask_values import MAX_VALUES, show, sort_values
from runtime.console import listing
from runtime.errors import DataError
from unet.config import MaskValue

REPAIR = (
    "Export the masks again without smoothing (re-saving them keeps the invented values),"
    " see docs/preparing-masks.md#no-smoothed-edges"
)
SWAPPED_FOLDERS_HINT = "are images and masks swapped?"
LOSSY = "lossy mask"  # a kind of problem
NUMBER = re.compile(r"#?\b\d[\da-f]*\b(, (\.\.\.)?)?")  # mask values and sizes in a text
NAMES_IN_MESSAGE = 3  # files with the same problem that a message names
MIN_MERGED_FILES = 4  # from this many files with the same problem on, one line stands for all


class Problem(NamedTuple):
    """A mistake in a record: its kind in a few words, and a line that names the file."""

    kind: str
    text: str


class UnusableRecord(Exception):  # it says what a record is
    """A record cannot be used, for a `problem`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(kind, text)


@contextmanager
def problem_of_kind(kind: str) -> Iterator[None]:
    """A context in which a DataError makes the record unusable, with a problem of this kind."""
    try:
        yield
    except DataError as error:
        raise UnusableRecord(kind, str(error)) from error


def check_jpeg(name: str, pixels: Mapping[MaskValue, int]) -> None:
    """Raises UnusableRecord if a mask that is a JPEG holds values that compression has invented."""
    if len(pixels) > 2:
        raise UnusableRecord(
            LOSSY,
            f"{name}: mask is a JPEG with the values {show(sort_values(pixels))}; compression has invented some, and"
            f" re-saving the file keeps them: export the mask again as PNG (or {SWAPPED_FOLDERS_HINT})",
        )


def check_count(name: str, pixels: Mapping[MaskValue, int]) -> None:
    """Raises UnusableRecord if a mask of classes holds too many values."""
    if len(pixels) > MAX_VALUES:
        raise UnusableRecord("too many mask values", f"{name}: mask holds {describe_excess(pixels)}")


def describe_excess(pixels: Mapping[MaskValue, int]) -> str:
    """The values of masks that hold more than a data set may have, and their likely origins, in words."""
    return (
        f"more than {MAX_VALUES} values: {show(sort_values(pixels))}; are these smoothed edges (JPEG,"
        f" interpolation)? {REPAIR}; or are these numbers of objects (--task objects), or {SWAPPED_FOLDERS_HINT}"
    )


def merge_equal(texts: Sequence[str], limit: int = NAMES_IN_MESSAGE) -> list[str]:
    """Merge texts `NAME: problem`: if many names have the same problem, one text lists the first of these names.

    Texts that differ only in their numbers are merged too; the merged text has the numbers of the first one.
    """
    texts_by_problem: dict[str, list[str]] = {}
    for text in texts:
        _, _, problem = text.partition(": ")
        texts_by_problem.setdefault(NUMBER.sub("", problem), []).append(text)
    lines = []
    for equal_texts in texts_by_problem.values():
        if len(equal_texts) < MIN_MERGED_FILES:
            lines += equal_texts
            continue
        names = list(dict.fromkeys(text.partition(": ")[0] for text in equal_texts))
        files = f"{len(names)} files ({listing(names, limit=limit)})" if len(names) > 1 else names[0]
        problem = equal_texts[0].partition(": ")[2]
        lines.append(f"{files}: {problem}")
    return lines
