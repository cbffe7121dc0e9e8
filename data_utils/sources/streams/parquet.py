"""Parquet files that stay where they are: read a row group at a time, in an order that every process knows.

A stream is a sequence like any other split, only that records of one row group are cheap together. So the order of
training takes them together (`batch_sampler.stream_batches`), and all else, from resuming to sharing the work, stays.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import PurePosixPath
from threading import Lock
from typing import Any

import numpy as np

from data_utils.sources.hf_datasets import find_columns
from data_utils.sources.records import Record, StreamRecords
from data_utils.sources.streams.remote import reachable
from runtime.redact import redact

OPEN_GROUPS = 8  # kept in memory until the loader says how many it goes through side by side


class ParquetRecords(StreamRecords):
    """Rows of parquet files, local or wherever fsspec reaches, as records whose pictures are still encoded.

    Args:
        files: URL or path of each.
        groups: (G, 4) int64, the row groups in order: index of the file, of the group in it, first row, rows.
        columns: {"image": name, "mask": name}.
        open_groups: how many groups are kept in memory.
    """

    def __init__(
        self, files: Sequence[str], groups: np.ndarray, columns: dict[str, str], open_groups: int = OPEN_GROUPS
    ) -> None:
        self.files = files
        self.groups = groups
        self.columns = columns
        self.open_groups = open_groups
        self.group_sizes = groups[:, 3]
        self.ends = np.cumsum(self.group_sizes)
        self._read: OrderedDict[int, tuple[_Column, _Column]] = OrderedDict()
        self._process = os.getpid()
        self._lock = Lock()

    @classmethod
    def open(cls, files: Sequence[str], image_column: str | None, mask_column: str | None) -> "ParquetRecords":
        """Read the footer of each file. Raises DataError for what cannot be read or has no pictures."""
        from datasets import Features

        with ThreadPoolExecutor(16) as pool:
            footers = list(pool.map(_footer, files))
        groups: list[tuple[int, int, int, int]] = []
        for file, (_, row_groups) in enumerate(footers):
            for number, first, rows in row_groups:
                groups.append((file, number, first, rows))
        schema, _ = footers[0]
        columns = find_columns(Features.from_arrow_schema(schema), image_column, mask_column)
        return cls(files, np.array(groups, np.int64).reshape(-1, 4), columns)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __reduce__(self) -> tuple:
        return ParquetRecords, (self.files, self.groups, self.columns, self.open_groups)

    def __getitem__(self, i: int) -> Record:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        group = int(np.searchsorted(self.ends, i, side="right"))
        row = int(i - (self.ends[group] - self.groups[group, 3]))
        images, masks = self._group(group)
        image = _as_struct(images[row])
        mask = _as_struct(masks[row])
        name = image.get("path")
        if not name:
            file, _, first, _ = self.groups[group].tolist()
            name = f"{PurePosixPath(redact(self.files[file])).name} row {first + row}"
        # a path in a shard is only a name: the file is not beside it
        return {"image": image["bytes"], "target": mask["bytes"], "name": name}

    def _group(self, group: int) -> tuple["_Column", "_Column"]:
        """Both columns of a row group; the ones used last are kept."""
        if self._process != os.getpid():  # a loader process reads for itself
            self._read = OrderedDict()
            self._process = os.getpid()
        with self._lock:  # a data set is inspected in threads
            if group not in self._read:
                while len(self._read) >= self.open_groups:
                    self._read.popitem(last=False)
                file, number = self.groups[group, :2].tolist()
                with _opened(self.files[file]) as parquet:
                    table = parquet.read_row_group(number, columns=list(self.columns.values()))
                images = _Column(table.column(self.columns["image"]))
                masks = _Column(table.column(self.columns["mask"]))
                self._read[group] = images, masks
            self._read.move_to_end(group)
            return self._read[group]

    def part(self, chosen: np.ndarray) -> "ParquetRecords":
        """The records of the groups that `chosen`, (G,) bool, marks."""
        return ParquetRecords(self.files, self.groups[chosen], self.columns)


class _Column:
    """A column of a row group whose values become Python objects when they are asked for."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __getitem__(self, row: int) -> dict | bytes | None:
        value = self.values[row].as_py()
        return {"bytes": None} if value is None else value


def _as_struct(value: dict | bytes | None) -> dict[str, Any]:
    """A picture's struct of its bytes and maybe a path, as a column of structs holds it."""
    return value if isinstance(value, dict) else {"bytes": value}


def _footer(file: str) -> tuple[Any, list[tuple[int, int, int]]]:
    """Schema, and (number, first row, rows) of each row group that is not empty."""
    with _opened(file) as parquet:
        groups: list[tuple[int, int, int]] = []
        first = 0
        for number in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(number).num_rows
            if rows:
                groups.append((number, first, rows))
            first += rows
        return parquet.schema_arrow, groups


@contextmanager
def _opened(file: str) -> Iterator[Any]:
    """A pyarrow ParquetFile; DataError for what cannot be read."""
    import fsspec
    from pyarrow.parquet import ParquetFile

    with reachable(file), fsspec.open(file, "rb") as stream, ParquetFile(stream, pre_buffer=True) as parquet:
        yield parquet
