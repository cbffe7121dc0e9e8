"""The lock of a run on its output folder. The kernel releases it when the process ends, even if it is killed."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from runtime.errors import SettingsError
from runtime.files import WITHOUT_LOCKS, is_supported

LOCK = ".lock"  # the file in the folder; its text names the holder
_held: list[FileLock] = []


def lock_folder(folder: Path) -> None:
    """Lock a folder until `locks_released` is left or this process ends.

    If the file system has no locks or cannot be written to, nothing is locked; the run fails later if it has to write
    there. Raises SettingsError, which names the run that holds the lock.
    """
    file = folder / LOCK
    lock = FileLock(file, fallback_to_soft=False)  # a soft lock would outlast a kill
    try:
        is_held = is_supported(partial(lock.acquire, timeout=0), WITHOUT_LOCKS)
    except Timeout:
        raise SettingsError(
            f"--output-dir {folder} is in use by {_read_owner(file)}; wait until that run has ended, or choose another"
        ) from None
    except OSError:
        return
    if not is_held:
        return
    _held.append(lock)
    with suppress(OSError):
        owner = f"process {os.getpid()} on {socket.gethostname()}, started {time.strftime('%Y-%m-%d %H:%M:%S')}"
        file.write_text(owner + "\n")


@contextmanager
def file_lock(file: Path, seconds: float = -1) -> Iterator[bool]:
    """A context that holds a lock file, if the file system has locks; whether it does.

    Raises Timeout if another process holds it for so many seconds, of which -1 is any number.
    """
    lock = FileLock(file, fallback_to_soft=False)
    is_held = is_supported(partial(lock.acquire, timeout=seconds), WITHOUT_LOCKS)
    try:
        yield is_held
    finally:
        lock.release()


@contextmanager
def locks_released() -> Iterator[None]:
    """On leaving this context, also with an error, all locks of `lock_folder` are released."""
    try:
        yield
    finally:
        while _held:
            lock = _held.pop()
            with suppress(OSError):
                os.unlink(lock.lock_file)
            lock.release()


def _read_owner(file: Path) -> str:
    """The holder of the lock, according to the file."""
    try:
        owner = file.read_text(errors="replace").partition("\n")[0][:200]
    except OSError:
        owner = ""
    return owner or "another run"
