"""Folders and everything below them, through links too."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from runtime.errors import DataError


def walk(folder: Path, onerror: Callable[[OSError], None] | None = None) -> Iterator[tuple[str, list[str], list[str]]]:
    """Do as `os.walk` does, and follow links to folders.

    Raises DataError for a link to a folder that holds it: the files there would be found again and again.
    """
    for parent, folders, names in os.walk(folder, onerror=onerror, followlinks=True):
        for name in folders:
            path = os.path.join(parent, name)
            if os.path.islink(path):
                _check_link(path, folder)
        yield parent, folders, names


def _check_link(link: str, root: Path) -> None:
    """Raises DataError for a link below `root` to a folder that holds it, or holds a link on the way to it."""
    target = Path(os.path.realpath(link))
    holder = Path(link).parent
    while True:
        if Path(os.path.realpath(holder)).is_relative_to(target):
            raise DataError(f"{link} is a link to {target}, a folder that holds the link itself; remove the link")
        if holder == root:
            return
        holder = holder.parent
