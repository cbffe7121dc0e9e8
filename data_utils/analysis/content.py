"""Whether a data set is unchanged: the names and sizes of its files, and the content of some."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
from PIL import Image

from data_utils.image_io.formats import EmbeddedImage, ImageSource, PageFile, source_files
from data_utils.image_io.places import with_ignored
from data_utils.sources.records import Records, spread_indices
from runtime.cache import digest, size_and_time
from runtime.documents import open_regular

SAMPLED_RECORDS = 16  # records of a split whose names make its fingerprint, and whose content is read
WHOLE_BYTES = 64 * 2**20  # bytes that are read of a larger file, in blocks from its start to its end
BLOCK_BYTES = 2**20


def content_key(splits: Iterable[Records]) -> str:
    """A key that changes with the names and sizes of the splits' files and the content of some, not with their times.

    The key also changes with the classes that any image is labeled for.

    Records that are not files of their own are only sampled; a stream, which may be far away, is not read.
    """
    parts: list[object] = []
    for records in splits:
        if records.is_stream:
            continue
        for index in spread_indices(len(records), SAMPLED_RECORDS):
            record = records[index]
            target = with_ignored(record["target"])  # as in earlier versions, whose runs can be resumed
            parts += [record["name"], _content(record["image"]), _content(target)]
        if records.metadata.label_sets:
            parts += [records.label_set(index) for index in range(len(records))]
        parts += _names_and_sizes(records)
    return digest(*parts)[:12]


def _names_and_sizes(records: Records) -> Iterator[tuple[str | int, ...]]:
    """The name of each record, and the bytes of its files; nothing if images are not files of their own."""
    if not len(records) or not source_files(records[0]["image"]):
        return
    pair_sizes = records.pair_sizes()
    if pair_sizes is not None:
        for i, sizes in enumerate(zip(*pair_sizes.T.tolist(), strict=True)):
            yield records.name(i), *sizes
        return
    for record in records:
        files = source_files(record["image"]) + source_files(record["target"])
        yield record["name"], *(size_and_time(file)[0] for file in files)


def _content(source: ImageSource) -> str:
    """A checksum of a source's content; if it cannot be read, the reason."""
    try:
        paths = source_files(source)
        if paths:
            return digest(*map(_file_checksum, paths))
        content = cast(Any, source)
        if isinstance(content, EmbeddedImage):
            content = content.render()
        if isinstance(content, Image.Image | np.ndarray):
            array = np.asarray(content)
            return digest(array.shape, array.dtype.str, array.tobytes())
        # The text of all other sources, so the names of their fields count. A field that is added to one must be left
        # out of its text, or runs of before do not resume.
        return digest(content.path if isinstance(content, PageFile) else content)
    except (OSError, ValueError) as error:
        return type(error).__name__


def _file_checksum(path: str) -> bytes:
    """The SHA-256 of a file; for a large file, of its size and of evenly spaced blocks."""
    size = os.stat(path).st_size
    starts = np.arange(0, size, BLOCK_BYTES)
    if size > WHOLE_BYTES:
        starts = np.linspace(0, size - BLOCK_BYTES, WHOLE_BYTES // BLOCK_BYTES).astype(int)
    checksum = hashlib.sha256(str(size).encode())
    with open_regular(path) as file:
        for start in starts.tolist():
            file.seek(start)
            checksum.update(file.read(BLOCK_BYTES))
    return checksum.digest()
