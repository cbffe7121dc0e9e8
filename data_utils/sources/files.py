"""Records of local files: a table with a row of paths for each, and a function that makes image and target of a row."""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.image_io.formats import ImageSource
from data_utils.sources.records import Metadata, Record, Records
from runtime.cache import digest_of_files

Files = tuple[str, ...]
Sources = tuple[ImageSource, ImageSource]


class FileRow(NamedTuple):
    """A row of the table.

    Args:
        name: what the record is called.
        images, targets: its files, below the folders of images and of targets; "" for one that is not there.
        listed: its name with the folders that a file of annotations lists; "" if it has no other.
        entry: JSON, what the files of annotations list for this image alone; empty if it is not needed.
    """

    name: str
    images: Files
    targets: Files = ()
    listed: str = ""
    entry: bytes = b""


def first_files(row: FileRow) -> Sources:
    """Files that are read as they are."""
    return row.images[0], row.targets[0]


class FileRecords(Records):
    """Records whose images and targets are local files.

    The table is one array of bytes: a million Python strings would be copied, page by page, into every loader process
    as their reference counts change.

    Args:
        folders: that of the images, and that of the targets.
        sources: makes image and target of a row whose files are paths, and of `options`.

    Attributes:
        table: the rows one after another, of each its entry, name, listed name, number of images, images and targets,
            as bytes between zeros, which no name of a file holds.
        ends: (N + 1,) where the rows begin and end.
    """

    def __init__(
        self,
        folders: tuple[Path, Path],
        rows: Sequence[FileRow],
        metadata: Metadata,
        sources: Callable[..., Sources] = first_files,
        *options: object,
    ) -> None:
        self.folders = str(folders[0]), str(folders[1])
        texts: list[bytes] = []
        for row in rows:
            cells = (row.name, row.listed, str(len(row.images)), *row.images, *row.targets)
            texts.append(b"\0".join([row.entry, *map(os.fsencode, cells)]))
        self.table = b"".join(texts)
        self.ends = np.cumsum([0, *map(len, texts)])
        self.below = {os.path.dirname(row.images[0]) for row in rows if row.images}
        self.metadata = metadata
        self.sources = sources
        self.options = options

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, i: int) -> Record:
        row = self.row(i)
        image, target = self.sources(row, *self.options)
        return {"image": image, "target": target, "name": row.name}

    def row(self, i: int) -> FileRow:
        """A row with the paths of its files; an image that is not there is left out, such a target is ""."""
        row = self._stored_row(i)
        images = tuple(os.path.join(self.folders[0], file) for file in row.images if file)
        targets = tuple(file and os.path.join(self.folders[1], file) for file in row.targets)
        return row._replace(images=images, targets=targets)

    def _stored_row(self, i: int) -> FileRow:
        if not -len(self) <= i < len(self):
            raise IndexError(f"record {i} of {len(self)}")
        i %= len(self)
        entry, *cells = self.table[self.ends[i] : self.ends[i + 1]].split(b"\0")
        name, listed, count, *files = map(os.fsdecode, cells)
        return FileRow(name, tuple(files[: int(count)]), tuple(files[int(count) :]), listed, entry)

    def name(self, i: int) -> str:
        return self._stored_row(i).name

    def listed_name(self, i: int) -> str:
        row = self._stored_row(i)
        return row.listed or row.name

    def image_folders(self) -> set[tuple[str, str]]:
        return {(self.folders[0], below) for below in self.below}

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of what is made from them."""
        paths: dict[str, None] = {}
        for i in range(len(self)):
            row = self.row(i)
            paths.update(dict.fromkeys(filter(None, row.images + row.targets)))
        made = repr((self.sources.__name__, self.metadata.classes, self.metadata.landmarks, self.options))
        return digest_of_files(paths, made.encode() + self.table)
