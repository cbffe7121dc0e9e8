"""What was measured once is remembered outside the data set, by names, sizes and times of its files."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

JSON = Any  # what json takes and gives
FORMAT = 2  # of what is remembered: another number forgets everything


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/unet-accelerate, by default in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unet-accelerate"


def digest(*parts: object) -> str:
    """A key for values whose `repr` tells them apart, and for bytes."""
    found = hashlib.sha256()
    for part in (FORMAT, *parts):
        content = part if isinstance(part, bytes) else repr(part).encode()
        found.update(b"%d:" % len(content) + content)
    return found.hexdigest()[:32]


def digest_of_files(paths: Iterable[str | Path], names: bytes) -> str:
    """A key for the content of files: `names`, below their folder, with size and time of each."""
    return digest(names, repr([_size_and_time(path) for path in paths]).encode())


def _size_and_time(path: str | Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:  # will be named when it is read
        return None
    return stat.st_size, stat.st_mtime_ns


def remembered(key: str | None, compute: Callable[[], JSON], keep: Callable[[JSON], bool] = lambda value: True) -> JSON:
    """`compute()`, or what it gave the last time under this key; None remembers nothing.

    A cache that cannot be read or written only costs the time of computing again.
    """
    if key is None:
        return compute()
    file = cache_folder() / f"{key}.json"
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):  # not there, or damaged
        value = compute()
    if keep(value):
        _write(file, json.dumps(value))
    return value


def _write(file: Path, text: str) -> None:
    """Under a temporary name first: another run may be reading."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except OSError:
        return
