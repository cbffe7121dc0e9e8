"""--exclude: images that are left out of both splits, by the names in a list."""

from pathlib import Path

import numpy as np

from data_utils.sources.annotations.documents import lines_of
from data_utils.sources.folder import find_name, spellings
from data_utils.sources.records import Records, select
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
    train_names = [shown_name(train, i) for i in range(len(train))]
    val_names = [shown_name(val, i) for i in range(len(val))]
    by_spelling = spellings([*train_names, *val_names])
    name_by_line = {line: find_name(line, by_spelling) for line in read_names(file)}
    unknown = sorted(line for line, name in name_by_line.items() if name is None)
    if unknown:
        name_list = listing(unknown)
        raise DataError(f"--exclude {file}: the data set has no {name_list}; take such lines out of the list")
    left_out = set(name_by_line.values())

    def keep(records: Records, names: list[str], title: str) -> Records:
        indices = [i for i, name in enumerate(names) if name not in left_out]
        if not indices:
            raise DataError(f"--exclude {file}: leaves no {title} image; shorten the list")
        if len(indices) == len(names):
            return records
        return select(records, np.array(indices))

    return keep(train, train_names, "training"), keep(val, val_names, "validation")


def read_names(file: Path) -> set[str]:
    """The names in a list, without empty lines and lines that begin with #. Raises DataError if it cannot be read."""
    if not file.is_file():
        raise DataError(f"--exclude {file}: there is no such file")
    lines = map(str.strip, lines_of(file))
    return {printable(line) for line in lines if line and not line.startswith(COMMENT)}


def shown_name(records: Records, index: int) -> str:
    """The name of a record as it is written in lists of images, on one line."""
    return printable(redact(records.name(index)))
