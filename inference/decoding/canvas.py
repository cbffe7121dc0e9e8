"""An array that grows row by row: in memory while it is small, then in a temporary file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

IN_MEMORY = 2**26  # bytes
ROWS = 64  # that are handed on together


class Canvas:
    """Rows (n, *sides) int32 of zeros, to be written to at `values`.

    Args:
        scratch: the folder of the file; None for that of temporary files.
    """

    def __init__(self, sides: Sequence[int], scratch: Path | None = None) -> None:
        self.sides = tuple(sides)
        self.scratch = scratch
        self.rows = 0
        self._file: Any = None
        self.values: np.ndarray = np.zeros((0, *sides), np.int32)

    def grow(self, rows: int) -> None:
        """Append so many rows."""
        self.rows += rows
        if self.rows <= len(self.values):
            return
        capacity = max(self.rows, 2 * len(self.values))
        shape = (capacity, *self.sides)
        size = 4 * int(np.prod(shape, dtype=np.int64))
        if size <= IN_MEMORY:
            grown = np.zeros(shape, np.int32)
            grown[: len(self.values)] = self.values
            self.values = grown
        elif isinstance(self.values, np.memmap):
            self._file.truncate(size)
            self.values = np.memmap(self._file, np.int32, "r+", shape=shape)
        else:
            self._file = TemporaryFile(dir=self.scratch)  # noqa: SIM115  # it lives as long as the canvas
            self._file.truncate(size)
            before = self.values
            self.values = np.memmap(self._file, np.int32, "r+", shape=shape)
            self.values[: len(before)] = before

    def bands(self) -> Iterator[np.ndarray]:
        """The rows from top to bottom, some at a time."""
        for top in range(0, self.rows, ROWS):
            yield self.values[top : min(top + ROWS, self.rows)]
