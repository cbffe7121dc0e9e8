"""Records of local files: a row of paths each, and a function that says what image and target they are."""

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
    """The name of a record, and its files below the folders of images and of targets; "" for one that is not there."""

    name: str
    images: Files
    targets: Files


def first_files(images: Files, targets: Files) -> Sources:
    """Files that are read as they are."""
    return images[0], targets[0]


class FileRecords(Records):
    """Records whose images and targets are local files.

    Names are kept as bytes in arrays: a million Python strings would be copied, page by page, into every loader
    process as their reference counts change.

    Args:
        folders: that of the images, and that of the targets.
        sources: makes image and target from the paths of a record's images and targets, and `options`.
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
        self.names = np.array([os.fsencode(row.name) for row in rows], np.bytes_)
        self.image_files = _as_bytes([row.images for row in rows])
        self.target_files = _as_bytes([row.targets for row in rows])
        self.metadata = metadata
        self.sources = sources
        self.options = options

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> Record:
        images, targets = self.paths(i)
        image, target = self.sources(tuple(filter(None, images)), targets, *self.options)
        return {"image": image, "target": target, "name": self.name(i)}

    def name(self, i: int) -> str:
        return os.fsdecode(self.names[i].item())

    def paths(self, i: int) -> tuple[Files, Files]:
        """The paths of a record's images and of its targets; "" for a file that is not there."""
        image_folder, target_folder = self.folders
        return _joined(image_folder, self.image_files[i]), _joined(target_folder, self.target_files[i])

    def image_folders(self) -> set[tuple[str, str]]:
        return {(self.folders[0], os.path.dirname(os.fsdecode(file))) for file in self.image_files[:, 0].tolist()}

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of what is made from them."""
        paths: list[str] = []
        for i in range(len(self)):
            images, targets = self.paths(i)
            paths += filter(None, (*images, *targets))
        made = repr((self.sources.__name__, self.metadata.classes, self.options)).encode()
        names = [self.names, self.image_files.ravel(), self.target_files.ravel()]
        return digest_of_files(paths, b"/".join([made, *np.concatenate(names).tolist()]))


def _as_bytes(rows: Sequence[Files]) -> np.ndarray:
    """(N, n) bytes of N rows of up to n texts; missing ones are empty."""
    width = max(map(len, rows), default=1) or 1
    columns = []
    for column in range(width):
        texts = []
        for row in rows:
            if column < len(row):
                texts.append(os.fsencode(row[column]))
            else:
                texts.append(b"")
        columns.append(np.array(texts, np.bytes_))
    return np.stack(columns, axis=1)


def _joined(folder: str, files: np.ndarray) -> Files:
    """The paths of files (n,) bytes in a folder; "" where a name is empty."""
    paths = []
    for file in files.tolist():
        path = ""
        if file:
            path = os.path.join(folder, os.fsdecode(file))
        paths.append(path)
    return tuple(paths)
