"""An array that grows row by row: in memory while it is small, then in a temporary file."""

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

IN_MEMORY = 2**22  # bytes
ROWS = 64  # rows that are passed on together


class Canvas:
    """Rows (n, *sides) int32, zeros at first; a caller writes to `values`.

    Args:
        scratch: the folder of the file; None for the system's folder of temporary files.
    """

    def __init__(self, sides: Sequence[int], scratch: Path | None) -> None:
        self.sides = tuple(sides)
        self.scratch = scratch
        self.rows = 0
        self._file: Any = None
        self._mapping: mmap.mmap | None = None
        self.values: np.ndarray = np.zeros((0, *sides), np.int32)

    def grow(self, rows: int) -> None:
        """Append rows of zeros."""
        self.rows += rows
        self._release()
        if self.rows <= len(self.values):
            return
        before = self.values
        capacity = max(self.rows, 2 * len(before))
        shape = (capacity, *self.sides)
        size = 4 * int(np.prod(shape, dtype=np.int64))
        if size <= IN_MEMORY:
            self.values = np.zeros(shape, np.int32)
            self.values[: len(before)] = before
            return
        is_first = self._file is None
        if is_first:
            self._file = TemporaryFile(dir=self.scratch)  # noqa: SIM115  # it lives as long as the canvas
        self._file.truncate(size)
        self._mapping = mmap.mmap(self._file.fileno(), size)
        self.values = np.frombuffer(self._mapping, np.int32).reshape(shape)
        if is_first:
            self.values[: len(before)] = before

    def strips(self) -> Iterator[np.ndarray]:
        """The rows from top to bottom, some at a time."""
        for top in range(0, self.rows, ROWS):
            yield self.values[top : min(top + ROWS, self.rows)]
            self._release()

    def _release(self) -> None:
        """Give back the memory that holds pages of the file; the system reads them again when they are needed."""
        if self._mapping is not None and hasattr(mmap, "MADV_DONTNEED"):  # Windows does not have it
            self._mapping.madvise(mmap.MADV_DONTNEED)
