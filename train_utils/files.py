"""Files that are there whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from train_utils.progress import say

WRITE_ERRORS = (OSError, SafetensorError)  # a disk that is full, read-only or gone


class WriteError(OSError):
    """What a run has computed is not on disk in the end; one line."""


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """Write into the folder this yields; on leaving, its files replace those of `path` one by one, each atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        path.mkdir(exist_ok=True)
        for file in temporary.iterdir():
            sync(file)
            file.replace(path / file.name)
        sync(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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


@contextmanager
def spared(what: str) -> Iterator[None]:
    """Go on behind the block where the disk refuses what it writes, and say so."""
    try:
        yield
    except WRITE_ERRORS as error:
        say(f"{what} could not be written ({error})")


def sync(path: Path) -> None:
    """Have the disk hold a file, or a folder's list of files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
