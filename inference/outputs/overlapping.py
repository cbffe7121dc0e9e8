"""Masks of classes that may overlap: a folder of masks of 0 and 255 for each class."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from data_utils.image_io.class_masks import ClassFile, ClassMasks
from data_utils.image_io.writers import PagesWriter
from data_utils.targets.overlapping import OverlapReader
from data_utils.visualize import outlined_classes, palette
from inference.outputs.encoder import LegendEntry, MaskEncoder, MaskFiles
from inference.outputs.jobs import MASK, ImageJob, Job, MaskFile
from runtime.errors import SettingsError
from runtime.files import replaced_file
from tasks.overlapping import Overlapping
from unet.config import UNetConfig

INSIDE = 255
UNSAFE = re.compile(r'[\x00-\x1f<>:"/\\|?*]')  # characters that names of files cannot have on some system
NOTHING = "nothing"  # what the first color of pictures stands for


def folder_names(names: Sequence[str]) -> list[str]:
    """A name of a folder for each class, as near to its own as files may be called; all differ, in lower case too."""
    folders: list[str] = []
    for name in names:
        safe = UNSAFE.sub("_", name).strip(" .") or "class"
        folder = safe
        number = 2
        while folder.lower() in {other.lower() for other in folders}:
            folder = f"{safe}_{number}"
            number += 1
        folders.append(folder)
    return folders


class OverlapEncoder(MaskEncoder):
    """A mask for each class, in the folder of its name."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        self.reader = OverlapReader(self.classes)
        self.names = (NOTHING, *self.classes)
        self.colors = palette(len(self.names))
        self.class_folders = folder_names(self.classes)
        self.mask_extensions = [f"{folder}/{MASK}" for folder in self.class_folders]

    @classmethod
    def of_model(cls, config: UNetConfig) -> "OverlapEncoder":
        return cls(Overlapping.from_config(config).names)

    def encode(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def for_file(self, file: Path) -> MaskEncoder:
        if file.suffix.lower() == MASK:
            raise SettingsError(
                f"--output {file}: classes that may overlap have a mask each; give a folder, or a file .tif, which gets"
                " a page for each class"
            )
        return PageEncoder(self.classes, file.suffix)

    def encode_all(self, rows: np.ndarray) -> list[np.ndarray]:
        return [((rows >> bit & 1) * INSIDE).astype(np.uint8) for bit in range(len(self.classes))]

    def written_mask(self, job: Job) -> MaskFile:
        files = tuple(ClassFile(str(job.file(extension))) for extension in self.mask_extensions)
        return ClassMasks(files, tuple(range(len(files))))

    def check_volume(self, name: str) -> None:
        """Masks of 0 and 255 are whole numbers."""

    def shades(self, rows: np.ndarray) -> np.ndarray:
        """The last of a pixel's classes: later ones lie over earlier ones."""
        shades = np.zeros(rows.shape, np.uint8)
        for bit in range(len(self.classes)):
            shades[rows >> bit & 1 == 1] = bit + 1
        return shades

    def overlay(self, image: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return outlined_classes(image, rows, self.colors[1:])

    def legend_entries(self, rows: np.ndarray) -> list[LegendEntry]:
        entries = []
        for bit, (color, name) in enumerate(zip(self.colors[1:].tolist(), self.classes, strict=True)):
            entries.append(LegendEntry(tuple(color), f"{name} {(rows >> bit & 1).mean():.1%}"))
        return entries


class PageEncoder(OverlapEncoder):
    """A TIFF with a page of 0 and 1 for each class.

    Args:
        suffix: of its file.
    """

    def __init__(self, classes: Sequence[str], suffix: str) -> None:
        super().__init__(classes)
        self.mask_extensions = [suffix]

    @contextmanager
    def open_masks(self, job: ImageJob, size: tuple[int, int]) -> Iterator[MaskFiles]:
        job.output.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(job.file(self.mask_extensions[0])) as file, PagesWriter(file) as writer:
            yield MaskFiles(self, [writer])

    def encode_all(self, rows: np.ndarray) -> list[np.ndarray]:
        pages = [rows >> bit & 1 for bit in range(len(self.classes))]
        return [np.stack(pages).astype(np.uint8)]

    def written_mask(self, job: Job) -> MaskFile:
        path = str(job.file(self.mask_extensions[0]))
        bits = tuple(range(len(self.classes)))
        return ClassMasks(tuple(ClassFile(path, page) for page in bits), bits)
