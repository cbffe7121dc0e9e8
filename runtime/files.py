"""Files and folders that are written completely or not at all, and write errors of disks."""

import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from runtime.console import say, say_once
from runtime.documents import open_regular

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

# flags that create a new file; a link in its place is an error, and is not followed
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp", re.DOTALL)  # the names of temporary files
LONGEST_NAME = 200  # bytes of a name that stay in the name of its temporary file
WRITE_ERRORS = (OSError, SafetensorError)  # the errors of a disk that is full, read-only or gone
# what file systems answer that have no locks (Lustre, some NFS) or cannot flush a folder (CIFS, VirtualBox, FUSE)
UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)
WITHOUT_LOCKS = "this file system has no locks: two programs that write into one folder at once are not stopped"
WITHOUT_FLUSH = "this file system does not say when files are on its disk: a power failure may lose the last ones"


def user_path(text: str) -> Path:
    """The path that a user typed; `~` and `~name` stand for home folders unless something is there of that name."""
    return Path(text if os.path.exists(text) else os.path.expanduser(text))


@contextmanager
def replace_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path; on leaving without an error, the file written there replaces `path`.

    Several processes may write the same file at once; the last one wins.
    """
    with _private_folder(path) as folder:
        temporary = folder / path.name
        yield temporary
        sync(temporary)
        temporary.replace(path)


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """`replace_path` that yields the temporary file, opened for writing bytes."""
    temporary = _temporary_path(path)
    try:
        with open(temporary, "wb", opener=lambda path, _: os.open(path, NEW_FILE, 0o666)) as file:
            _lock(file.fileno())
            yield file
            file.flush()
            is_supported(partial(os.fsync, file.fileno()), WITHOUT_FLUSH)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replace_files(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder; on leaving without an error, its files move to `folder`, each in one atomic step."""
    with _private_folder(folder) as temporary:
        yield temporary
        folder.mkdir(exist_ok=True)
        for file in temporary.iterdir():
            sync(file)
            file.replace(folder / file.name)
        sync(folder)


@contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder; on leaving without an error, it is written to disk and renamed to `folder`.

    The parent folder must exist. If it vanishes meanwhile, it is not created again, since it may be a mount point.
    """
    with _private_folder(folder) as temporary:
        yield temporary
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        shutil.rmtree(folder, ignore_errors=True)  # an older folder of the same name
        temporary.rename(folder)
        sync(folder.parent)


@contextmanager
def _private_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder beside `path` and removes it on leaving; first it removes the folders of killed runs."""
    for entry in os.scandir(path.parent):
        if _is_temporary(entry.name, path):
            with suppress(OSError), _locked(entry) as is_locked:  # a writer that lives has locked its own
                if is_locked:
                    shutil.rmtree(entry, ignore_errors=True)
    temporary = _temporary_path(path)
    try:
        temporary.mkdir()
        with _locked(temporary):
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_path(path: Path) -> Path:
    """A random name beside `path`: at a predictable name, a link could redirect the writes to another file."""
    return path.with_name(f".{_shortened(path.name)}.{secrets.token_hex(4)}.tmp")


def _shortened(name: str) -> str:
    """The start of a name to which something is to be added; file systems take 255 bytes."""
    while len(os.fsencode(name)) > LONGEST_NAME:
        name = name[:-1]
    return name


def _is_temporary(name: str, path: Path) -> bool:
    """Whether a name was made by `_temporary_path` for `path`."""
    match = TEMPORARY.fullmatch(name)
    return match is not None and match[1] == _shortened(path.name)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files in a folder whose writers were killed; files that are being written stay."""
    if not folder.is_dir():
        return
    for entry in os.scandir(folder):
        if TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            with suppress(OSError), _locked(entry) as is_locked:  # its writer may have renamed it meanwhile
                if is_locked:
                    os.unlink(entry)


@contextmanager
def _locked(path: str | os.PathLike) -> Iterator[bool]:
    """A context in which a file or folder is locked; whether it is, as of `_lock`."""
    if fcntl is None:
        yield False
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock an open file until it is closed or its process ends; False where that cannot be had.

    Raises BlockingIOError if another writer holds it.
    """
    if fcntl is None:
        return False
    return is_supported(partial(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), WITHOUT_LOCKS)


def is_supported(request: Callable[[], object], line: str) -> bool:
    """Whether the file system does what is requested; where it never does, the line is printed once.

    Raises other errors of the request.
    """
    try:
        request()
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        say_once(line)
        return False
    return True


@contextmanager
def tolerate_write_errors(output: str) -> Iterator[None]:
    """In this context, a write error of the disk is printed, and ends the block but not the run."""
    try:
        yield
    except WRITE_ERRORS as error:
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
        is_supported(partial(os.fsync, descriptor), WITHOUT_FLUSH)
    finally:
        os.close(descriptor)
