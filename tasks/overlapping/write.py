"""Masks of classes that may overlap: a folder of masks of 0 and 255 for each class."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from data_utils.image_io.class_masks import ClassMasks, layered_label
from data_utils.image_io.formats import TIFF_SUFFIXES, PageFile
from runtime.errors import SettingsError
from runtime.files import replace_file
from tasks.job import MASK, Job, MaskFile
from tasks.overlapping.bit_format import BitFormat
from tasks.overlapping.loss import Overlapping
from tasks.overlapping.reader import OverlapReader
from tasks.polygons import Properties
from tasks.prediction import Decoded
from tasks.prediction_files import PredictedImage, Values, save_values
from tasks.prediction_format import MaskFormat, free_value
from tasks.writers import write_pages
from unet.config import UNetConfig

INSIDE = 255
UNSAFE = re.compile(r'[\x00-\x1f<>:"/\\|?*]')  # characters that names of files cannot have on some system


def folder_names(names: Sequence[str]) -> list[str]:
    """A folder name for each class, as close to the class's as file names allow; all differ, in lower case too."""
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


class OverlapFormat(BitFormat):
    """A mask for each class, in the folder of its name."""

    def __init__(self, classes: Sequence[str]) -> None:
        super().__init__(classes)
        self.reader = OverlapReader(self.classes)
        self.class_folders = folder_names(self.classes)
        self.mask_extensions = [f"{folder}/{MASK}" for folder in self.class_folders]

    @classmethod
    def from_config(cls, config: UNetConfig) -> "OverlapFormat":
        return cls(Overlapping.from_config(config).names)

    def for_file(self, file: Path) -> MaskFormat:
        if file.suffix.lower() not in TIFF_SUFFIXES:
            raise SettingsError(
                f"--output {file}: classes that may overlap have a mask each; give a folder, or a file .tif, which gets"
                " a page for each class"
            )
        return PageFormat(self.classes, file.suffix)

    def class_mask(self, bit: int, labels: np.ndarray) -> np.ndarray:
        """The mask of a class, 0 and 255."""
        return ((labels >> bit & 1) * INSIDE).astype(np.uint8)

    def write_mask(self, image: PredictedImage) -> None:
        paths = [image.job.file(extension) for extension in self.mask_extensions]
        for bit in reversed(range(len(paths))):  # the first one last
            paths[bit].parent.mkdir(parents=True, exist_ok=True)
            convert = partial(self.class_mask, bit)
            nodata = free_value((0, INSIDE))
            save_values(image.job, paths[bit], Values(image.decoded.labels, convert, image.raster_missing, nodata))

    def written_mask(self, job: Job) -> MaskFile:
        files = [str(job.file(extension)) for extension in self.mask_extensions]
        if job.volume is not None:
            return layered_label(files, range(len(files)))
        return ClassMasks(tuple(map(PageFile, files)), tuple(range(len(files))))

    def areas(self, labels: np.ndarray) -> Sequence[np.ndarray]:
        return [self.class_mask(bit, labels) for bit in range(len(self.classes))]

    def area_properties(self, layer: int, number: int, decoded: Decoded) -> Properties:
        return {"class": self.classes[layer]}


class PageFormat(OverlapFormat):
    """A TIFF with a page of 0 and 1 for each class; it is not georeferenced.

    Args:
        suffix: the suffix of its file.
    """

    writes_rasters = False

    def __init__(self, classes: Sequence[str], suffix: str) -> None:
        super().__init__(classes)
        self.mask_extensions = [suffix]

    def write_mask(self, image: PredictedImage) -> None:
        labels = image.decoded.labels
        with replace_file(self.mask_file(image.job)) as file:
            pages = [(labels >> bit & 1).astype(np.uint8) for bit in range(len(self.classes))]
            write_pages(file, pages)

    def written_mask(self, job: Job) -> MaskFile:
        path = str(self.mask_file(job))
        bits = tuple(range(len(self.classes)))
        return ClassMasks(tuple(PageFile(path, page) for page in bits), bits)
