"""Files that are there whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

WRITE_ERRORS = (OSError, SafetensorError)  # a disk that is full, read-only or gone


class WriteError(OSError):
    """What a run has computed is not on disk in the end; one line."""


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """Write into the folder this yields; on leaving, its files replace those of `path` one by one, each atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    path.mkdir(exist_ok=True)
    for file in temporary.iterdir():
        sync(file)
        file.replace(path / file.name)
    sync(path)
    temporary.rmdir()


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Write into the file this yields; on leaving without an error it takes the place of `path`."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have the disk hold a file, or a folder's list of files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
