"""--exclude: images that are left out of both splits, by the names in a list."""

from itertools import chain
from pathlib import Path

import numpy as np

from data_utils.sources.annotations.documents import lines_of
from data_utils.sources.records import Records, select
from data_utils.sources.spelling import find_name, spellings
from runtime.console import listing
from runtime.errors import DataError
from runtime.redact import printable, redact

COMMENT = "#"


def leave_out(train: Records, val: Records, file: Path) -> tuple[Records, Records]:
    """Both splits without the images that a file names, a name on each line.

    The images are left out when the splits are made, so that the other images stay in their splits. Raises DataError
    for a list that cannot be read, for names that the data set does not have, and if a split would have no image left.
    """
    if train.is_stream:
        raise DataError(f"--exclude {file}: the images of a stream are not known before training; leave the flag out")
    names_by_split = []
    for records in (train, val):
        names_by_split.append([shown_name(records, index) for index in range(len(records))])
    by_spelling = spellings(chain(*names_by_split))
    found_names = {line: find_name(line, by_spelling) for line in read_names(file)}
    names = set(found_names.values())
    kept_splits = []
    for records, split_names in zip((train, val), names_by_split, strict=True):
        kept_indices = np.array([index for index, name in enumerate(split_names) if name not in names], dtype=np.int64)
        if len(kept_indices) < len(split_names):
            records = select(records, kept_indices)
        kept_splits.append(records)
    unknown = sorted(line for line, name in found_names.items() if name is None)
    if unknown:
        name_list = listing(unknown)
        raise DataError(f"--exclude {file}: the data set has no {name_list}; take such lines out of the list")
    for kept_records, title in zip(kept_splits, ("training", "validation"), strict=True):
        if not len(kept_records):
            raise DataError(f"--exclude {file}: leaves no {title} image; shorten the list")
    return kept_splits[0], kept_splits[1]


def read_names(file: Path) -> set[str]:
    """The names in a list, without empty lines and lines that begin with #. Raises DataError if it cannot be read."""
    if not file.is_file():
        raise DataError(f"--exclude {file}: there is no such file")
    lines = map(str.strip, lines_of(file))
    return {printable(line) for line in lines if line and not line.startswith(COMMENT)}


def shown_name(records: Records, index: int) -> str:
    """The name of a record as it is written in lists of images, on one line."""
    return printable(redact(records.name(index)))
