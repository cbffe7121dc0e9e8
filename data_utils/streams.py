"""Parquet files that stay where they are: read a row group at a time, in an order that every process knows.

A stream is a sequence like any other split, only that records of one row group are cheap together. So the order of
training takes them together (`batching.stream_batches`), and all else, from resuming to sharing the work, stays.
"""

import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from threading import Lock
from typing import Any

import numpy as np

from runtime.errors import DataError
from data_utils.tables import find_columns

OPEN_GROUPS = 8  # until the loader says how many it goes through side by side
KINDS = (".parquet", ".tar")
LISTED = 3


class ParquetRows(Sequence):
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
        self.files, self.groups, self.columns, self.open_groups = files, groups, columns, open_groups
        self.ends = np.cumsum(groups[:, 3])
        self._read: OrderedDict[int, tuple[_Column, _Column]] = OrderedDict()
        self._process, self._lock = os.getpid(), Lock()

    @classmethod
    def open(cls, files: Sequence[str], image_column: str | None, mask_column: str | None) -> "ParquetRows":
        """Read the footer of each file. Raises DataError for what cannot be read or has no pictures."""
        from datasets import Features

        with ThreadPoolExecutor(16) as pool:
            footers = list(pool.map(_footer, files))
        groups = [(i, g, at, rows) for i, (_, parts) in enumerate(footers) for g, at, rows in parts]
        features = Features.from_arrow_schema(footers[0][0])
        found = find_columns(features, image_column, mask_column)
        return cls(files, np.array(groups, np.int64).reshape(-1, 4), found)

    @property
    def lengths(self) -> np.ndarray:
        """(G,) rows of each group: what `stream_batches` keeps together."""
        return self.groups[:, 3]

    @property
    def digest(self) -> None:
        """Remote files may change unseen: nothing is remembered of them."""

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __reduce__(self) -> tuple:
        return ParquetRows, (self.files, self.groups, self.columns, self.open_groups)

    def __getitem__(self, i: int) -> dict:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        group = int(np.searchsorted(self.ends, i, side="right"))
        row = int(i - (self.ends[group] - self.groups[group, 3]))
        images, masks = self._group(group)
        image, mask = (value if isinstance(value, dict) else {"bytes": value} for value in (images[row], masks[row]))
        file, _, first, _ = self.groups[group].tolist()
        name = image.get("path") or f"{PurePosixPath(self.files[file]).name} row {first + row}"
        # a path in a shard is only a name: the file is not beside it
        return {"image": image["bytes"], "mask": mask["bytes"], "name": name}

    def _group(self, group: int) -> tuple["_Column", "_Column"]:
        """Both columns of a row group; the ones used last are kept."""
        if self._process != os.getpid():  # a loader process reads for itself
            self._read, self._process = OrderedDict(), os.getpid()
        with self._lock:  # a survey reads in threads
            if group not in self._read:
                while len(self._read) >= self.open_groups:
                    self._read.popitem(last=False)
                file, number = self.groups[group, :2].tolist()
                wanted = list(self.columns.values())
                table = _parquet(self.files[file], lambda parquet: parquet.read_row_group(number, columns=wanted))
                image, mask = (_Column(table.column(name)) for name in wanted)
                self._read[group] = image, mask
            self._read.move_to_end(group)
            return self._read[group]

    def part(self, chosen: np.ndarray) -> "ParquetRows":
        """Only the groups where `chosen`, (G,) bool."""
        return ParquetRows(self.files, self.groups[chosen], self.columns)


class _Column:
    """A column of a row group whose values become Python objects when they are asked for."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __getitem__(self, row: int) -> dict | bytes | None:
        value = self.values[row].as_py()
        return {"bytes": None} if value is None else value


def _footer(file: str) -> tuple[object, list[tuple[int, int, int]]]:
    """Schema, and (number, first row, rows) of each row group."""

    def look(parquet: Any) -> tuple[object, list[tuple[int, int, int]]]:
        rows = [parquet.metadata.row_group(g).num_rows for g in range(parquet.num_row_groups)]
        firsts = np.cumsum([0, *rows]).tolist()
        return parquet.schema_arrow, [(g, firsts[g], rows[g]) for g in range(len(rows)) if rows[g]]

    return _parquet(file, look)


def _parquet(file: str, use: Callable[[Any], Any]) -> Any:
    import fsspec
    from pyarrow.parquet import ParquetFile

    try:
        with fsspec.open(file, "rb") as stream, ParquetFile(stream, pre_buffer=True) as parquet:
            return use(parquet)
    except failures() as error:
        raise DataError(f"{file} cannot be read ({reason(error)})") from error


def failures() -> tuple[type[Exception], ...]:
    """What fsspec and its file systems raise for what is not there, not allowed or not reached."""
    from pyarrow import ArrowException

    found: tuple[type[Exception], ...] = (OSError, ValueError, ImportError, ArrowException)
    remote = sys.modules.get("botocore.exceptions")  # S3's own errors are no OSError
    return (*found, remote.BotoCoreError) if remote else found


def reason(error: Exception) -> str:
    """One line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def find_files(dataset: str, named: Iterable[str]) -> dict[str, list[str]]:
    """Split -> its .parquet or .tar files below a folder, a file or a pattern, local or a URL.

    A file belongs to the split whose name stands in its path between other signs than letters; without any, to train.
    """
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(dataset)
        if "*" in path:
            paths = system.glob(path)
        else:
            paths = [path] if path.endswith(KINDS) and system.isfile(path) else system.find(path)
    except failures() as error:
        raise DataError(f"--dataset {dataset} cannot be read ({reason(error)})") from error
    root = path.partition("*")[0].rpartition("/")[0] if "*" in path or paths == [path] else path
    found = {kind: sorted(file for file in paths if file.endswith(kind)) for kind in KINDS}
    if all(found.values()) or not any(found.values()):
        what = "both .parquet and .tar files" if all(found.values()) else "no .parquet or .tar files"
        listed = ", ".join(PurePosixPath(file).name for file in sorted(paths)[:LISTED])
        raise DataError(f"--dataset {dataset} holds {what}; found {listed or 'nothing'}")
    splits: dict[str, list[str]] = {}
    usual = [name for name in named if name] + ["train", "training", "val", "validation", "valid", "test"]
    for file in found[".parquet"] or found[".tar"]:
        inside = file.removeprefix(root).lower()
        split = next(
            (name for name in usual if re.search(rf"(?<![a-z]){re.escape(name.lower())}(?![a-z])", inside)), "train"
        )
        splits.setdefault(split, []).append(system.unstrip_protocol(file))
    return splits


def hold_out_shards(rows: Sequence[dict], fraction: float, seed: int) -> tuple[Sequence[dict], Sequence[dict]]:
    """Training and validation part of a stream, whole files in each. Raises DataError for a single file."""
    file_of = rows.groups[:, 0]
    files, where = np.unique(file_of, return_inverse=True)
    if len(files) < 2:
        raise DataError(
            f"a stream of {len(files)} file has none to validate on; give it a validation split, or smaller shards"
        )
    sizes = np.bincount(where, weights=rows.lengths)
    order = np.random.default_rng(seed).permutation(len(files))
    count = min(int(np.searchsorted(np.cumsum(sizes[order]), sizes.sum() * fraction)) + 1, len(files) - 1)
    held_out = np.isin(where, order[:count])
    return rows.part(~held_out), rows.part(held_out)
