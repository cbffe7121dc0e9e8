"""Records of an image and an annotation file each."""

import os
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from data_utils.image_io.formats import ImageSource
from data_utils.sources.records import Metadata, Record, Records, folder_pairs
from runtime.cache import digest_of_files


class PairedRecords(Records):
    """Pairs of an image and a file that its mask is made from; kept as bytes, as in FolderRecords.

    Args:
        images, annotations: the folders.
        pairs: image and annotation file below their folders; "" for an image without annotation, which is all
            background.

    Attributes:
        values: mask value of each class index or label of the annotation files; empty if they hold mask values.
    """

    values: tuple[int, ...] | dict[str, int] = ()

    def __init__(
        self,
        images: Path,
        annotations: Path,
        pairs: Sequence[tuple[str, str]],
        metadata: Metadata,
    ) -> None:
        self.folders = str(images), str(annotations)
        image_names = np.array([os.fsencode(image) for image, _ in pairs])
        annotation_names = np.array([os.fsencode(annotation) for _, annotation in pairs])
        self.files = (image_names, annotation_names)
        self.metadata = metadata

    def __len__(self) -> int:
        return len(self.files[0])

    def __getitem__(self, i: int) -> Record:
        image, annotation = self.paths(i)
        return {"image": image, "target": self.mask(image, annotation), "name": self.image_name(i)}

    @abstractmethod
    def mask(self, image: str, annotation: str) -> ImageSource:
        """The mask of an image, from the paths of both files; the annotation's path is "" if there is none."""

    def image_name(self, i: int) -> str:
        """Path of an image below its folder."""
        return os.fsdecode(self.files[0][i].item())

    def paths(self, i: int) -> tuple[str, str]:
        """The paths of an image and its annotation file; "" for a file that does not exist."""
        image_folder, annotation_folder = self.folders
        _, annotation_names = self.files
        annotation = os.fsdecode(annotation_names[i].item())
        return _join_path(image_folder, self.image_name(i)), _join_path(annotation_folder, annotation)

    def image_folders(self) -> set[tuple[str, str]]:
        return folder_pairs(self.folders[0], self.files[0])

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of how masks are made from them."""
        paths: list[str] = []
        for i in range(len(self)):
            paths += self.paths(i)
        rendering = repr(self.rendering()).encode()
        return digest_of_files(paths, b"/".join([rendering, *self.files[0], *self.files[1]]))

    def rendering(self) -> tuple[object, ...]:
        """The settings that masks depend on, beside the files."""
        return (type(self).__name__, self.metadata.classes, self.values)


def _join_path(folder: str, name: str) -> str:
    """The path of a file in a folder; "" where its name is empty."""
    return os.path.join(folder, name) if name else ""
