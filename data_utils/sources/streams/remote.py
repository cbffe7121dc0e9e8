"""Files wherever fsspec reaches: which there are, opening them, and one error for what cannot be reached."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from runtime.errors import DataError, UserError, one_line
from runtime.redact import redact

KINDS = (".parquet", ".tar")
LISTED = 3


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

    found: tuple[type[Exception], ...] = (OSError, ValueError, ImportError, ArrowException)
    # errors of S3 and of the web are no OSError
    s3, web = sys.modules.get("botocore.exceptions"), sys.modules.get("aiohttp")
    return (*found, *([s3.BotoCoreError] if s3 else []), *([web.ClientError] if web else []))


def find_files(dataset: str, named: Iterable[str]) -> dict[str, list[str]]:
    """Split -> its .parquet or .tar files below a folder, a file or a pattern, local or a URL.

    A file belongs to the split whose name stands in its path between other signs than letters; without any, to train.
    """
    import fsspec

    with reachable(f"--dataset {dataset}"):
        system, path = fsspec.core.url_to_fs(dataset)
        if "*" in path:
            paths = system.glob(path)
        else:
            paths = [path] if kind_of(path) and system.isfile(path) else system.find(path)
    root = _without_query(path).partition("*")[0].rpartition("/")[0] if "*" in path or paths == [path] else path
    found = {kind: sorted(file for file in paths if kind_of(file) == kind) for kind in KINDS}
    if all(found.values()) or not any(found.values()):
        what = "both .parquet and .tar files" if all(found.values()) else "no .parquet or .tar files"
        first = [redact(system.unstrip_protocol(file)) for file in sorted(paths)[:LISTED]]
        listed = ", ".join(PurePosixPath(file).name for file in first)
        raise DataError(f"--dataset {dataset} holds {what}; found {listed or 'nothing'}")
    splits: dict[str, list[str]] = {}
    usual = [name for name in named if name] + ["train", "training", "val", "validation", "valid", "test"]
    for file in found[".parquet"] or found[".tar"]:
        inside = _without_query(file).removeprefix(root).lower()
        split = next(
            (name for name in usual if re.search(rf"(?<![a-z]){re.escape(name.lower())}(?![a-z])", inside)), "train"
        )
        splits.setdefault(split, []).append(system.unstrip_protocol(file))
    return splits


def kind_of(file: str) -> str | None:
    """Which of KINDS a path or URL names, None for another."""
    name = _without_query(file)
    return next((kind for kind in KINDS if name.endswith(kind)), None)


def _without_query(file: str) -> str:
    """A signed URL without its query; a URL whose query names the file stays as it is."""
    before = file.partition("?")[0]
    return before if before.endswith(KINDS) else file
