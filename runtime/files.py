"""Files and folders that are written completely or not at all, and disks that refuse them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from runtime.console import say

WRITE_ERRORS = (OSError, SafetensorError)  # a disk that is full, read-only or gone


@contextmanager
def replaced_path(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A temporary path beside `path`; on leaving without an error, the file written there takes the place of `path`.

    With `shared`, several processes may write the same file at once; the last one wins.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp" if shared else f".{path.name}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replaced_file(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """Do as `replaced_path` does, with the temporary file opened for writing bytes."""
    with replaced_path(path, shared=shared) as temporary, temporary.open("wb") as file:
        yield file


@contextmanager
def replaced_files(folder: Path) -> Iterator[Path]:
    """Write into the folder this yields; on leaving, its files replace those of `folder` one by one, each atomic."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        folder.mkdir(exist_ok=True)
        for file in temporary.iterdir():
            sync(file)
            file.replace(folder / file.name)
        sync(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """Write into the folder this yields; on leaving without an error, it is on disk as `folder`, whole.

    The parent folder must exist. Should it vanish, it is not made again: it may be a mount point.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        shutil.rmtree(folder, ignore_errors=True)  # an older one of the same name
        temporary.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def tolerated(what: str) -> Iterator[None]:
    """Within, a write error of the disk is printed and ends the block, not the run."""
    try:
        yield
    except WRITE_ERRORS as error:
        say(f"{what} could not be written ({error})")


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of files, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
