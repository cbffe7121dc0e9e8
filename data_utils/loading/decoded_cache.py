"""--cache, always on for volumes: a split decoded and resized once, in an Arrow file that all processes map."""

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from runtime.cache import cache_folder, digest
from runtime.console import track
from runtime.errors import DataError
from runtime.files import replaced_file
from runtime.parallel import available_cpus, map_ahead

Pair = tuple[np.ndarray, np.ndarray]
FOUND = 1024  # records whose place in the file is remembered: finding one takes longer than copying a patch


class DecodedSplit:
    """Image (C, *size) and mask of each record, read without copying. What failed to decode fails again."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._table: Any = None
        self._found = lru_cache(FOUND)(self._find)

    def __reduce__(self) -> tuple:
        return DecodedSplit, (self.file,)

    def __getitem__(self, i: int) -> Pair:
        return self._found(i)

    def _find(self, i: int) -> Pair:
        import pyarrow

        if self._table is None:
            self._table = pyarrow.ipc.open_file(pyarrow.memory_map(str(self.file)))
        row = {name: column[0] for name, column in zip(self._table.schema.names, self._table.get_batch(i), strict=True)}
        if row["problem"].is_valid:
            raise DataError(row["problem"].as_py())
        image = np.frombuffer(row["image"].as_buffer(), row["dtype"].as_py()).reshape(row["image_shape"].as_py())
        return image, np.frombuffer(row["mask"].as_buffer(), np.uint8).reshape(row["mask_shape"].as_py())


def decode_once(
    prepare: Callable[[int], Pair],
    count: int,
    key: str | None,
    skip: tuple[type[Exception], ...],
) -> DecodedSplit:
    """`prepare(0)`, ... `prepare(count - 1)`, from the cache if an earlier run decoded them under the same `key`.

    The key must change with everything that the samples depend on.

    Errors in `skip` are kept in place of the sample. Raises DataError where nothing can be kept.
    """
    import pyarrow

    if key is None:
        raise DataError("--cache works with local files only; leave it out for shapes and streams")
    file = cache_folder() / f"{digest('decoded', key)}.arrow"

    def attempt(i: int) -> Pair | str:
        try:
            return prepare(i)
        except skip as error:
            return str(error)

    shape = pyarrow.list_(pyarrow.int64())
    fields = {"image": pyarrow.large_binary(), "image_shape": shape, "dtype": pyarrow.string()}
    fields |= {"mask": pyarrow.large_binary(), "mask_shape": shape, "problem": pyarrow.string()}
    schema = pyarrow.schema(fields)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _clear(file.parent)
        with FileLock(file.with_suffix(".lock")):  # another run may be at it
            if not file.exists():
                # no more volumes in memory than it takes
                decoded = map_ahead(attempt, range(count), ahead=available_cpus(), threads=available_cpus())
                with replaced_file(file) as stream, pyarrow.ipc.new_file(stream, schema) as writer:
                    for found in track(decoded, count, "decoding for the cache"):
                        writer.write_batch(pyarrow.RecordBatch.from_pylist([_row(found)], schema))
    except OSError as error:
        raise DataError(
            f"the cache of decoded samples cannot be written to {file.parent} ({error.strerror or error});"
            " free some space, or set XDG_CACHE_HOME to a folder on another disk"
        ) from error
    return DecodedSplit(file)


def _clear(folder: Path) -> None:
    """Remove temporary files of runs that were killed while they decoded."""
    for temporary in folder.glob(".*.arrow.tmp"):
        lock = folder / temporary.name.removeprefix(".").replace(".arrow.tmp", ".lock")
        with suppress(Timeout), FileLock(lock, timeout=0):
            temporary.unlink(missing_ok=True)


def _row(found: Pair | str) -> dict:
    if isinstance(found, str):
        return {"problem": found}
    image, mask = found
    return {
        "image": image.ravel().view(np.uint8).data,  # no copy: a volume may take half the memory
        "image_shape": image.shape,
        "dtype": image.dtype.str,
        "mask": mask.ravel().data,
        "mask_shape": mask.shape,
    }
