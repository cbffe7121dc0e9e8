"""Files wherever fsspec reaches: finding them, opening them, and one error for unreachable files."""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import PurePosixPath
from typing import Any, Concatenate, ParamSpec, TypeVar

from data_utils.sources.folder import SPLIT_FOLDERS
from runtime.cache import digest
from runtime.documents import check_regular
from runtime.errors import DataError, UserError, one_line
from runtime.redact import redact

KINDS = (".parquet", ".tar")
USUAL_SPLITS = (*SPLIT_FOLDERS, "test")
NAMES_IN_MESSAGE = 3  # files that a message names
RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0)  # how long to wait before a remote file is read again
# errors that trying again does not change
LASTING_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
TOO_MANY_REQUESTS = 429
SERVER_ERRORS = 500
# the names that file systems give the version of a file, in lower case with hyphens
VERSIONS = ("etag", "md5hash", "content-md5", "blob-id", "last-modified", "lastmodified", "updated", "mtime", "created")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@contextmanager
def file_errors(name: str, *more: type[Exception], hint: str = "") -> Iterator[None]:
    """Turn errors of finding, opening or reading a file, and `more` errors, into a DataError with `name` and `hint`."""
    try:
        yield
    except Exception as error:
        # errors of pyarrow, of S3 and of the web are no OSError
        failures: tuple[type[Exception], ...] = (OSError, ValueError, ImportError, *more)
        failures += _errors_of("pyarrow", "ArrowException")
        failures += _errors_of("botocore.exceptions", "BotoCoreError") + _errors_of("aiohttp", "ClientError")
        if isinstance(error, UserError) or not isinstance(error, failures):
            raise
        raise DataError(f"{name} cannot be read ({one_line(error)}){hint}") from error


def retry(read: Callable[Concatenate[str, Arguments], Result]) -> Callable[Concatenate[str, Arguments], Result]:
    """Make a function that reads a file, its first argument, retry when the network fails, after growing waits."""

    @wraps(read)
    def read_repeatedly(file: str, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        protocol, separator, _ = file.partition("://")
        is_remote = bool(separator) and protocol not in ("file", "local", "memory")
        for seconds in RETRY_SECONDS if is_remote else ():
            try:
                return read(file, *args, **kwargs)
            except DataError as error:
                if not _may_pass(error.__cause__):
                    raise
            time.sleep(seconds)
        return read(file, *args, **kwargs)

    return read_repeatedly


def _may_pass(error: BaseException | None) -> bool:
    """Whether a failure may be gone a moment later: of the network or a server, not of the file or the rights to it."""
    if isinstance(error, _errors_of("aiohttp", "ClientResponseError")):
        status = getattr(error, "status", 0)
        return status == TOO_MANY_REQUESTS or status >= SERVER_ERRORS
    network_errors = _errors_of("botocore.exceptions", "HTTPClientError", "ConnectionError")
    network_errors += _errors_of("aiohttp", "ClientError")
    return isinstance(error, (OSError, *network_errors)) and not isinstance(error, LASTING_ERRORS)


def _errors_of(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Types of errors of a module; none if nobody has imported it."""
    loaded = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names) if loaded else ()


def open_file(file: str, block: int = 0) -> Any:
    """A file for reading, which reads ahead by `block` bytes; s3fs alone would read 50 MB ahead of each place."""
    import fsspec

    system, path = fsspec.core.url_to_fs(file)
    if isinstance(system, fsspec.implementations.local.LocalFileSystem):
        check_regular(path)
    if block:
        return system.open(path, "rb", block_size=block, cache_type="readahead")
    return system.open(path, "rb", cache_type="none")


@retry
def read_ranges(file: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
    """The bytes of a file in each range [start, end)."""
    import fsspec

    with file_errors(file):
        system, path = fsspec.core.url_to_fs(file)
        # s3fs has another order
        return [system.cat_file(path, start=start, end=end) for start, end in ranges]


def content_key(file: str) -> str | None:
    """A key that changes with the content of a file; None if its file system reports neither a version nor a time."""
    import fsspec

    with file_errors(file):
        system, path = fsspec.core.url_to_fs(file)
        info = {name.lower().replace("_", "-"): value for name, value in system.info(path).items()}
    versions = [(name, str(info[name])) for name in VERSIONS if info.get(name)]
    if not versions or not info.get("size"):
        return None
    return digest(_remove_query(file), info["size"], versions)


def find_files(dataset: str, named_splits: Iterable[str]) -> dict[str, list[str]]:
    """Split -> its .parquet or .tar files below a folder, a file or a pattern, local or a URL.

    A file belongs to the split whose name occurs in its path, not surrounded by letters; otherwise to train.
    """
    import fsspec

    with file_errors(f"--dataset {dataset}"):
        system, path = fsspec.core.url_to_fs(dataset)
        if "*" in path:
            paths = system.glob(path)
        elif file_kind(path) and system.isfile(path):
            paths = [path]
        else:
            paths = system.find(path)
    root = path
    if "*" in path or paths == [path]:
        root = _remove_query(path).partition("*")[0].rpartition("/")[0]
    parquet_files = sorted(file for file in paths if file_kind(file) == ".parquet")
    tar_files = sorted(file for file in paths if file_kind(file) == ".tar")
    if bool(parquet_files) == bool(tar_files):
        kinds = "both .parquet and .tar files" if tar_files else "no .parquet or .tar files"
        urls = [redact(system.unstrip_protocol(file)) for file in sorted(paths)[:NAMES_IN_MESSAGE]]
        name_list = ", ".join(PurePosixPath(url).name for url in urls)
        raise DataError(f"--dataset {dataset} holds {kinds}; found {name_list or 'nothing'}")
    splits: dict[str, list[str]] = {}
    words = {
        name: re.compile(rf"(?<![a-z]){re.escape(name.lower())}(?![a-z])") for name in (*named_splits, *USUAL_SPLITS)
    }
    for file in parquet_files or tar_files:
        inside = _remove_query(file).removeprefix(root).lower()
        split = next((name for name, word in words.items() if word.search(inside)), "train")
        splits.setdefault(split, []).append(system.unstrip_protocol(file))
    return splits


def file_kind(file: str) -> str | None:
    """Which of KINDS a path or URL names, None for another."""
    name = _remove_query(file)
    return next((kind for kind in KINDS if name.endswith(kind)), None)


def _remove_query(file: str) -> str:
    """A signed URL without its query; a URL whose query names the file stays as it is."""
    path = file.partition("?")[0]
    if path.endswith(KINDS):
        return path
    return file
