"""Parquet files that stay where they are: read a row group at a time, in an order that every process knows.

A stream is a sequence like any other split, except that records of one row group are cheap to read together. So
training reads them together (`batch_sampler.stream_steps`); all else, from resuming to sharing the work, is
unchanged.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from data_utils.sources.hf_datasets import find_columns, stored_picture
from data_utils.sources.records import Record, StreamRows
from data_utils.sources.streams.remote import file_errors, open_file, retry
from runtime.console import listing
from runtime.errors import DataError
from runtime.redact import redact


class ParquetRows(StreamRows):
    """Rows of parquet files, local or wherever fsspec reaches, whose pictures are still encoded.

    Args:
        files: URL or path of each file.
        groups: (G, 4) int64, the row groups in order: index of the file, of the group in it, first row, rows.
        columns: {"image": name, "mask": name}.
    """

    @classmethod
    def open(cls, files: Sequence[str], image_column: str | None, mask_column: str | None) -> "ParquetRows":
        """Read the footer of each file. Raises DataError for a file that cannot be read or has no pictures."""
        from datasets import Features

        with ThreadPoolExecutor(16) as pool:
            footers = list(pool.map(partial(_read, read=_footer), files))
        groups: list[tuple[int, int, int, int]] = []
        for file, (_, group_rows) in enumerate(footers):
            first = 0
            for number, rows in enumerate(group_rows):
                if rows:
                    groups.append((file, number, first, rows))
                first += rows
        if not groups:
            raise DataError(f"{listing(list(map(redact, files)))}: there are no rows")
        schema, _ = footers[0]
        columns = find_columns(Features.from_arrow_schema(schema), image_column, mask_column)
        return cls(files, np.array(groups, np.int64).reshape(-1, 4), columns)

    def __getitem__(self, i: int) -> Record:
        group, row = self._locate(i)
        images, masks = self._group_content(group)
        name = self._row_name(group, row)
        with file_errors(name):  # a path may be no text
            image = images[row].as_py()
            mask = masks[row].as_py()
        if isinstance(image, dict):
            name = image.get("path") or name  # only a name: the file is not beside the shard
        return {"image": stored_picture(image, name), "target": stored_picture(mask, f"{name}: mask"), "name": name}

    def name(self, i: int) -> str:
        group, row = self._locate(i)
        file, number, _, _ = self.groups[group].tolist()
        column = f"{self.columns['image']}.path"

        def path(parquet: Any) -> str | None:
            paths = parquet.read_row_group(number, columns=[column])
            value = paths.column(0)[row].as_py() if paths.num_columns else None
            return value and value["path"]

        return _read(self.files[file], path) or self._row_name(group, row)

    def _row_name(self, group: int, row: int) -> str:
        file, _, first, _ = self.groups[group].tolist()
        return f"{PurePosixPath(redact(self.files[file])).name} row {first + row}"

    def _read_group(self, group: int) -> tuple[Any, Any]:
        """Both columns of a row group, still in Arrow's memory."""
        file, number, _, _ = self.groups[group].tolist()
        columns = list(self.columns.values())
        table = _read(self.files[file], lambda parquet: parquet.read_row_group(number, columns=columns))
        return table.column(self.columns["image"]), table.column(self.columns["mask"])


def _footer(parquet: Any) -> tuple[Any, list[int]]:
    """The schema, and the rows of each row group: all else of the footer takes megabytes."""
    metadata = parquet.metadata
    return parquet.schema_arrow, [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


@retry
def _read(file: str, read: Callable[[Any], Any]) -> Any:
    """What a function reads of a pyarrow ParquetFile. Raises DataError for a file that cannot be read."""
    from pyarrow.parquet import ParquetFile

    with file_errors(file), open_file(file) as stream, ParquetFile(stream, pre_buffer=True) as parquet:
        return read(parquet)
