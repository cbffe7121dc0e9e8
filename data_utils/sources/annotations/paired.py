"""Records of an image and an annotation file each."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from data_utils.image_io.formats import ImageSource
from data_utils.sources.records import AnnotationSummary, Metadata, Record, Records, folder_pairs
from runtime.cache import digest_of_files


class PairedRecords(Records):
    """Pairs of an image and a file that its mask is made from; kept as bytes, as in FolderRecords.

    Args:
        folders: the folder of the images, and that of the annotation files.
        pairs: image and annotation file below their folders; "" for an image without annotation, which is all
            background.
        summary: what the annotation files hold; None if nobody counts it.
        mask: makes the mask of an image, of the paths of annotation file ("" if there is none) and image, and of
            `options`; None if the annotation file is the mask.
    """

    def __init__(
        self,
        folders: tuple[Path, Path],
        pairs: Sequence[tuple[str, str]],
        metadata: Metadata,
        summary: AnnotationSummary | None = None,
        mask: Callable[..., ImageSource] | None = None,
        *options: object,
    ) -> None:
        self.folders = str(folders[0]), str(folders[1])
        image_names = np.array([os.fsencode(image) for image, _ in pairs])
        annotation_names = np.array([os.fsencode(annotation) for _, annotation in pairs])
        self.files = (image_names, annotation_names)
        self.metadata = metadata
        self.annotations = summary
        self.mask = mask
        self.options = options

    def __len__(self) -> int:
        return len(self.files[0])

    def __getitem__(self, i: int) -> Record:
        image, annotation = self.paths(i)
        target = annotation if self.mask is None else self.mask(annotation, image, *self.options)
        return {"image": image, "target": target, "name": os.fsdecode(self.files[0][i].item())}

    def paths(self, i: int) -> tuple[str, str]:
        """The paths of an image and its annotation file; "" for a file that does not exist."""
        image_folder, annotation_folder = self.folders
        image_names, annotation_names = self.files
        return _join_path(image_folder, image_names[i].item()), _join_path(
            annotation_folder, annotation_names[i].item()
        )

    def image_folders(self) -> set[tuple[str, str]]:
        return folder_pairs(self.folders[0], self.files[0])

    @cached_property
    def digest(self) -> str:
        """A key of the names, sizes and times of all files, and of how masks are made from them."""
        paths: list[str] = []
        for i in range(len(self)):
            paths += self.paths(i)
        mask = getattr(self.mask, "__name__", "")
        rendering = repr((mask, self.metadata.classes, self.options)).encode()
        return digest_of_files(paths, b"/".join([rendering, *self.files[0], *self.files[1]]))


def _join_path(folder: str, name: bytes) -> str:
    """The path of a file in a folder; "" where its name is empty."""
    return os.path.join(folder, os.fsdecode(name)) if name else ""


def pair_by_name(
    images: Mapping[str, str], files: Mapping[str, str], kind: str = "mask"
) -> tuple[list[tuple[str, str]], list[str]]:
    """Image and file of each name that both have, in the order of the images; and a line for each other image and file.

    Args:
        images, files: the files by their names.
        kind: what the files are, in the lines.
    """
    pairs = [(image, files[name]) for name, image in images.items() if name in files]
    unpaired = [f"{image}: image without {kind}" for name, image in images.items() if name not in files]
    unpaired += [f"{file}: {kind} without image" for name, file in files.items() if name not in images]
    return pairs, unpaired
