"""Files wherever fsspec reaches: which there are, opening them, and one error for what cannot be reached."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from runtime.errors import DataError, UserError, one_line
from runtime.redact import redact

KINDS = (".parquet", ".tar")
USUAL_SPLITS = ("train", "training", "val", "validation", "valid", "test")
LISTED = 3  # how many files a message names


@contextmanager
def reachable(name: str, *more: type[Exception], hint: str = "") -> Iterator[None]:
    """What fails while a file is found, opened or read, or is one of `more`, is a DataError with `name` and `hint`."""
    try:
        yield
    except UserError:
        raise
    except (*_failures(), *more) as error:
        raise DataError(f"{name} cannot be read ({one_line(error)}){hint}") from error


def _failures() -> tuple[type[Exception], ...]:
    """What fsspec and its file systems raise for what is not there, not allowed or not reached."""
    from pyarrow import ArrowException

    failures: list[type[Exception]] = [OSError, ValueError, ImportError, ArrowException]
    # errors of S3 and of the web are no OSError
    s3 = sys.modules.get("botocore.exceptions")
    if s3:
        failures.append(s3.BotoCoreError)
    web = sys.modules.get("aiohttp")
    if web:
        failures.append(web.ClientError)
    return tuple(failures)


def find_files(dataset: str, named_splits: Iterable[str]) -> dict[str, list[str]]:
    """Split -> its .parquet or .tar files below a folder, a file or a pattern, local or a URL.

    A file belongs to the split whose name stands in its path between other signs than letters; without any, to train.
    """
    import fsspec

    with reachable(f"--dataset {dataset}"):
        system, path = fsspec.core.url_to_fs(dataset)
        if "*" in path:
            paths = system.glob(path)
        elif kind_of(path) and system.isfile(path):
            paths = [path]
        else:
            paths = system.find(path)
    root = path
    if "*" in path or paths == [path]:
        root = _without_query(path).partition("*")[0].rpartition("/")[0]
    parquet_files = sorted(file for file in paths if kind_of(file) == ".parquet")
    tar_files = sorted(file for file in paths if kind_of(file) == ".tar")
    if bool(parquet_files) == bool(tar_files):
        what = "both .parquet and .tar files" if tar_files else "no .parquet or .tar files"
        urls = [redact(system.unstrip_protocol(file)) for file in sorted(paths)[:LISTED]]
        listed = ", ".join(PurePosixPath(url).name for url in urls)
        raise DataError(f"--dataset {dataset} holds {what}; found {listed or 'nothing'}")
    splits: dict[str, list[str]] = {}
    names = [name for name in named_splits if name]
    names += USUAL_SPLITS
    for file in parquet_files or tar_files:
        inside = _without_query(file).removeprefix(root).lower()
        files = splits.setdefault(_split_of(inside, names), [])
        files.append(system.unstrip_protocol(file))
    return splits


def _split_of(path: str, names: Iterable[str]) -> str:
    """The first of `names` that stands in a path between other signs than letters; without any, train."""
    for name in names:
        if re.search(rf"(?<![a-z]){re.escape(name.lower())}(?![a-z])", path):
            return name
    return "train"


def kind_of(file: str) -> str | None:
    """Which of KINDS a path or URL names, None for another."""
    name = _without_query(file)
    return next((kind for kind in KINDS if name.endswith(kind)), None)


def _without_query(file: str) -> str:
    """A signed URL without its query; a URL whose query names the file stays as it is."""
    path = file.partition("?")[0]
    return path if path.endswith(KINDS) else file
