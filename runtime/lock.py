"""Locks on files and folders. The kernel releases them when the process ends, even if it is killed."""

import atexit
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from runtime.errors import SettingsError

LOCK = ".lock"  # the file in the folder; its text names the holder
_held: list[FileLock] = []


def lock_folder(folder: Path) -> None:
    """Lock the output folder of a run until this process ends, or `release_folders` is called.

    If the file system has no locks or cannot be written to, nothing is locked; the run fails later if it has to write
    there. Raises SettingsError, which names the run that holds the lock.
    """
    file = folder / LOCK
    lock = _lock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SettingsError(
            f"--output-dir {folder} is in use by {_read_owner(file)}; wait until that run has ended, or choose another"
        ) from None
    except OSError:
        return
    _held.append(lock)
    atexit.register(release_folders)
    with suppress(OSError):
        owner = f"process {os.getpid()} on {socket.gethostname()}, started {time.strftime('%Y-%m-%d %H:%M:%S')}"
        file.write_text(owner + "\n")


def release_folders() -> None:
    """Release all locks of `lock_folder`."""
    while _held:
        lock = _held.pop()
        with suppress(OSError):
            os.unlink(lock.lock_file)
        lock.release()


@contextmanager
def file_lock(file: Path) -> Iterator[None]:
    """A context that holds a lock file, for which it waits; without one, if the file system has no locks."""
    lock = _lock(file)
    with suppress(OSError):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _lock(file: Path) -> FileLock:
    return FileLock(file, fallback_to_soft=False)  # a soft lock would outlast a kill


def _read_owner(file: Path) -> str:
    """The holder of the lock, according to the file."""
    try:
        owner = file.read_text(errors="replace").partition("\n")[0][:200]
    except OSError:
        owner = ""
    return owner or "another run"
