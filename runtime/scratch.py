"""Arrays of any size: small ones in memory, large ones in files without a name, mapped into memory."""

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

IN_MEMORY = 2**22  # bytes of an array that needs no file
NO_MAPPING = (errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL)  # of file systems that map or reserve no files (FUSE)
ROWS = 64  # rows of an image that are in memory together


def zeros(shape: Sequence[int], dtype: np.dtype | str, folder: Path | None) -> np.ndarray:
    """An array of zeros, in a file of `folder` if it is large; in memory if that is None, or maps no files.

    Raises OSError if the disk is full: a page of a mapped file that finds no place later would end the process.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if folder is None or size <= IN_MEMORY:
        return np.zeros(shape, dtype)
    with TemporaryFile(dir=folder) as file:  # the mapping keeps the file until the array is gone
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.memmap(file, dtype, "r+", shape=tuple(shape))
        except OSError as error:
            if error.errno not in NO_MAPPING:
                raise
    return np.zeros(shape, dtype)


def release(*arrays: np.ndarray | None) -> None:
    """Give back the memory that holds pages of mapped files; the system reads them again when they are needed."""
    for array in arrays:
        mapping = getattr(array, "_mmap", None)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):  # Windows does not have it
            mapping.madvise(mmap.MADV_DONTNEED)


def row_spans(rows: int, step: int = ROWS) -> Iterator[slice]:
    """The rows of an image from top to bottom, some at a time."""
    for top in range(0, rows, step):
        yield slice(top, min(top + step, rows))
