"""Files and folders that are written completely or not at all, and write errors of disks."""

import atexit
import errno
import hashlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from filelock import FileLock, Timeout

from runtime.console import say
from runtime.documents import open_regular
from runtime.errors import SettingsError

TEMPORARY = (".unet-", ".tmp")  # how the names of temporary folders begin and end
# what file systems answer that cannot flush a folder (CIFS, VirtualBox, FUSE)
NO_FLUSH = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)
ABANDONED = 3600  # seconds without a change after which nobody writes any more


def user_path(text: str) -> Path:
    """The path that a user typed, as `user_text` has it."""
    return Path(user_text(text))


def user_text(text: str) -> str:
    """What a user typed; `~` and `~name` stand for home folders unless something is there of that name."""
    return text if os.path.exists(text) else os.path.expanduser(text)


@contextmanager
def replace_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path; on leaving without an error, the file written there replaces `path`.

    Several processes may write the same file at once; the last one wins.
    """
    with _folder_beside(path) as folder:
        temporary = Path(folder, path.name)
        yield temporary
        sync(temporary)
        temporary.replace(path)


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """`replace_path` that yields the temporary file, opened for writing bytes."""
    with replace_path(path) as temporary, open(temporary, "wb") as file:
        yield file


@contextmanager
def replace_files(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder; on leaving without an error, its files move to `folder`, each in one atomic step."""
    with _folder_beside(folder) as temporary:
        yield Path(temporary)
        folder.mkdir(exist_ok=True)
        for file in Path(temporary).iterdir():
            sync(file)
            file.replace(folder / file.name)
        sync(folder)


@contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder; on leaving without an error, it is written to disk and renamed to `folder`.

    The parent folder must exist. If it vanishes meanwhile, it is not created again, since it may be a mount point.
    """
    with _folder_beside(folder) as parent:
        temporary = Path(parent, folder.name)
        temporary.mkdir()
        yield temporary
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        shutil.rmtree(folder, ignore_errors=True)  # an older folder of the same name
        temporary.rename(folder)
        sync(folder.parent)


def _folder_beside(path: Path) -> TemporaryDirectory:
    """A context of a new folder beside `path`, which is removed on leaving."""
    prefix, suffix = TEMPORARY
    return TemporaryDirectory(prefix=prefix, suffix=suffix, dir=path.parent, ignore_cleanup_errors=True)


def remove_leftovers(folder: Path, seconds: float = ABANDONED) -> None:
    """Remove what writers that were killed have left in a folder.

    Args:
        seconds: the time without a change, since somebody may be writing what is younger.
    """
    for leftover in folder.glob("*".join(TEMPORARY)):
        with suppress(OSError):
            changes = [path.stat().st_mtime for path in (leftover, *leftover.iterdir())]
            if time.time() - max(changes) >= seconds:
                shutil.rmtree(leftover)


@contextmanager
def tolerate_write_errors(output: str) -> Iterator[None]:
    """In this context, a write error of the disk is printed, and ends the block but not the run."""
    try:
        yield
    except OSError as error:
        say(f"{output} could not be written ({error})")


def checksum(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of files, to the disk (fsync), where the file system can."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FLUSH:
            raise
    finally:
        os.close(descriptor)


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
        owner = ""
        with suppress(OSError):
            owner = file.read_text(errors="replace").partition("\n")[0][:200]
        raise SettingsError(
            f"--output-dir {folder} is in use by {owner or 'another run'}; wait until that run has ended, or choose"
            " another"
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
