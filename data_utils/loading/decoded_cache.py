"""Samples that are decoded and resized once: in an Arrow file that all processes map, or in a process's memory.

The file is that of --cache, which is always on for volumes; what is small enough stays in memory without a flag.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from data_utils.target import Target
from runtime.cache import cache_file, digest
from runtime.console import say, track
from runtime.errors import DataError
from runtime.files import file_lock, remove_leftovers, replace_file
from runtime.machine import available_bytes, available_cpus
from runtime.parallel import map_ahead

Sample = tuple[np.ndarray, Target]  # an image (C, *size), and its target
# records whose arrays in the file are remembered: finding them takes longer than copying a patch
MAX_REMEMBERED_RECORDS = 1024
MOST_KEPT = 2**32  # bytes of a split in memory, shared by the loader processes of one process
SHARE_KEPT = 1 / 8  # of the free memory


class DecodedSplit:
    """Image (C, *size) and target of each record, read without copying. A sample that failed to decode fails again."""

    def __init__(self, file: Path, target: type[Target]) -> None:
        self.file = file
        self.target = target
        self._table: Any = None
        self._remembered = lru_cache(MAX_REMEMBERED_RECORDS)(self._find)

    def __reduce__(self) -> tuple:
        return DecodedSplit, (self.file, self.target)

    def __getitem__(self, i: int) -> Sample:
        return self._remembered(i)

    def _find(self, i: int) -> Sample:
        import pyarrow

        if self._table is None:
            self._table = pyarrow.ipc.open_file(pyarrow.memory_map(str(self.file)))
        names = self._table.schema.names
        columns = self._table.get_batch(i)
        row = {name: column[0] for name, column in zip(names, columns, strict=True)}
        if row["problem"].is_valid:
            raise DataError(row["problem"].as_py())
        fields = [_array(row, name) for name in self.target.field_names()]
        return _array(row, "image"), self.target(*fields)


def _array(row: dict[str, Any], name: str) -> np.ndarray:
    """An array of a row of the table, which stays in the file."""
    values = np.frombuffer(row[name].as_buffer(), row[f"{name}_type"].as_py())
    return values.reshape(row[f"{name}_shape"].as_py())


def decode_once(
    prepare: Callable[[int], Sample],
    count: int,
    target: type[Target],
    key: str | None,
    skip: tuple[type[Exception], ...],
) -> DecodedSplit:
    """`prepare(0)`, ... `prepare(count - 1)`, from the cache if an earlier run decoded them under the same `key`.

    The key must change with everything that the samples depend on.

    A file that was cut off is made again.

    Errors in `skip` are stored in place of the sample. Raises DataError if nothing can be stored.
    """
    if key is None:
        raise DataError("--cache works with local files only; leave it out for shapes and streams")
    file = cache_file(digest("decoded", "targets", key), ".arrow")

    def attempt(i: int) -> Sample | str:
        try:
            return prepare(i)
        except skip as error:
            return str(error)

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(file.parent)
        with file_lock(file.with_suffix(".lock")):  # another run may be writing the file
            if not _is_whole(file, count):
                # no more volumes in memory than threads need
                decoded = map_ahead(attempt, range(count), ahead=available_cpus(), threads=available_cpus())
                _write(file, track(decoded, count, "decoding for the cache"), target)
    except OSError as error:
        raise DataError(
            f"the cache of decoded samples cannot be written to {file.parent} ({error.strerror or error});"
            " free some space, or set XDG_CACHE_HOME to a folder on another disk"
        ) from error
    return DecodedSplit(file, target)


def _write(file: Path, samples: Iterable[Sample | str], target: type[Target]) -> None:
    """Write samples, or the problems that they have."""
    import pyarrow

    fields = {"problem": pyarrow.string()}
    for name in ("image", *target.field_names()):
        fields[name] = pyarrow.large_binary()
        fields[f"{name}_type"] = pyarrow.string()
        fields[f"{name}_shape"] = pyarrow.list_(pyarrow.int64())
    schema = pyarrow.schema(fields)
    with replace_file(file) as stream, pyarrow.ipc.new_file(stream, schema) as writer:
        for sample in samples:
            writer.write_batch(pyarrow.RecordBatch.from_pylist([_row(sample)], schema))


def _is_whole(file: Path, count: int) -> bool:
    """Whether a file of `count` decoded samples is there, up to its end."""
    import pyarrow

    if not file.is_file():
        return False
    try:
        with pyarrow.memory_map(str(file)) as content:
            return pyarrow.ipc.open_file(content).num_record_batches == count
    except (pyarrow.ArrowException, OSError):
        say(f"{file} is damaged; its samples are decoded again")
        return False


def _row(sample: Sample | str) -> dict[str, Any]:
    """A row of the table: a sample, or the problem that it has."""
    if isinstance(sample, str):
        return {"problem": sample}
    image, target = sample
    arrays = {"image": image}
    arrays.update(zip(target.field_names(), target.arrays(), strict=True))
    row: dict[str, Any] = {}
    for name, array in arrays.items():
        row[name] = array.ravel().view(np.uint8).data  # no copy: a volume may take half the memory
        row[f"{name}_type"] = array.dtype.str
        row[f"{name}_shape"] = array.shape
    return row


def room_for(pixels: float, channels: int, processes: int) -> int:
    """The bytes of a split that each loader process may keep; 0 where the split does not fit into them.

    Args:
        pixels: of all images together, about.
        processes: the number of loader processes, each of which keeps what it decodes; 0 for this process alone.
    """
    room = int(min(MOST_KEPT, SHARE_KEPT * available_bytes())) // max(1, processes)
    return room if pixels * (channels + 1) <= room else 0
