"""--cache: a split decoded and resized once, in an Arrow file that all processes map into memory."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from runtime.cache import cache_folder, digest
from runtime.console import track
from runtime.errors import DataError
from runtime.files import replaced_file
from runtime.parallel import map_indices

Pair = tuple[np.ndarray, np.ndarray]


class DecodedSplit:
    """Image (C, h, w) and mask (H, W) of each record, read without copying. What failed to decode fails again."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._table: Any = None

    def __reduce__(self) -> tuple:
        return DecodedSplit, (self.file,)

    def __getitem__(self, i: int) -> Pair:
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
    """`prepare(0)`, ... `prepare(count - 1)` under a `key` that stands for all they depend on; decoded if not there.

    Errors in `skip` are kept in place of the sample. Raises DataError where nothing can be kept.
    """
    import pyarrow

    if key is None:
        raise DataError("--cache keeps what is decoded from local files; leave it out for shapes and streams")
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
                with replaced_file(file) as stream, pyarrow.ipc.new_file(stream, schema) as writer:
                    for found in track(map_indices(attempt, count, 1), count, "decoding for --cache"):
                        writer.write_batch(pyarrow.RecordBatch.from_pylist([_row(found)], schema))
    except OSError as error:
        raise DataError(f"--cache cannot be written to {file.parent} ({error.strerror or error})") from error
    return DecodedSplit(file)


def _clear(folder: Path) -> None:
    """Remove what runs that were killed while they decoded have left."""
    for temporary in folder.glob(".*.arrow.tmp"):
        lock = folder / temporary.name.removeprefix(".").replace(".arrow.tmp", ".lock")
        with suppress(Timeout), FileLock(lock, timeout=0):
            temporary.unlink(missing_ok=True)


def _row(found: Pair | str) -> dict:
    if isinstance(found, str):
        return {"problem": found}
    image, mask = found
    return {
        "image": image.tobytes(),
        "image_shape": image.shape,
        "dtype": image.dtype.str,
        "mask": mask.tobytes(),
        "mask_shape": mask.shape,
    }
