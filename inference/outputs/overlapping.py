"""Masks of classes that may overlap: a folder of masks of 0 and 255 for each class."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data_utils.image_io.class_masks import ClassFile, ClassMasks, layered_label
from data_utils.image_io.formats import TIFF_SUFFIXES, VolumeFile
from data_utils.image_io.volumes import write_volume
from data_utils.image_io.writers import MASK_LEVEL, PngWriter, write_pages
from data_utils.targets.overlapping import OverlapReader
from inference.decoding.decoder import Decoder
from inference.outputs.bits import BitFormat
from inference.outputs.jobs import MASK, ImageJob, Job, MaskFile, RasterJob, VolumeJob
from inference.outputs.prediction_format import MaskFormat, MaskSink, Properties
from inference.outputs.rasters import MaskRaster, RasterSink, open_mask_raster
from runtime.errors import SettingsError
from runtime.files import replace_file
from tasks.overlapping import Overlapping
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

    def mask_values(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def for_file(self, file: Path) -> MaskFormat:
        if file.suffix.lower() not in TIFF_SUFFIXES:
            raise SettingsError(
                f"--output {file}: classes that may overlap have a mask each; give a folder, or a file .tif, which gets"
                " a page for each class"
            )
        return PageFormat(self.classes, file.suffix)

    def class_masks(self, prediction: np.ndarray) -> list[np.ndarray]:
        """The mask of each class, 0 and 255."""
        return [((prediction >> bit & 1) * INSIDE).astype(np.uint8) for bit in range(len(self.classes))]

    @contextmanager
    def open_mask(self, job: ImageJob, size: tuple[int, int], decoder: Decoder) -> Iterator[MaskSink]:
        with ExitStack() as stack:
            paths = [_make_folder(job.file(extension)) for extension in self.mask_extensions]
            if isinstance(job, RasterJob):
                rasters = [stack.enter_context(open_mask_raster(job, path, size, (0, INSIDE))) for path in paths]
                yield ClassRasters(self, rasters)
                return
            writers = []
            for path in paths:
                file = stack.enter_context(replace_file(path))
                writers.append(stack.enter_context(PngWriter(file, size, MASK_LEVEL)))
            yield ClassWriters(self, writers)

    def write_volume(self, job: VolumeJob, prediction: np.ndarray) -> None:
        with ExitStack() as stack:
            for extension, values in zip(self.mask_extensions, self.class_masks(prediction), strict=True):
                file = stack.enter_context(replace_file(_make_folder(job.file(extension))))
                write_volume(file, values, job.volume)

    def mask_file(self, job: Job) -> Path:
        return job.file(self.mask_extensions[0])

    def written_mask(self, job: Job) -> MaskFile:
        files = tuple(ClassFile(str(job.file(extension))) for extension in self.mask_extensions)
        return ClassMasks(files, tuple(range(len(files))))

    def written_volume(self, job: VolumeJob) -> VolumeFile:
        files = [str(job.file(extension)) for extension in self.mask_extensions]
        return layered_label(files, range(len(files)))

    def areas(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        return self.class_masks(rows)

    def area_properties(self, layer: int, number: int, decoder: Decoder) -> Properties:
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

    @contextmanager
    def open_mask(self, job: ImageJob, size: tuple[int, int], decoder: Decoder) -> Iterator[MaskSink]:
        job.output.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(self.mask_file(job)) as file, PagesWriter(file, len(self.classes)) as writer:
            yield writer

    def written_mask(self, job: Job) -> MaskFile:
        path = str(self.mask_file(job))
        bits = tuple(range(len(self.classes)))
        return ClassMasks(tuple(ClassFile(path, page) for page in bits), bits)


class ClassWriters:
    """The open masks of all classes of an image."""

    def __init__(self, output_format: OverlapFormat, writers: Sequence[PngWriter]) -> None:
        self.output_format = output_format
        self.writers = writers

    def write(self, rows: np.ndarray) -> None:
        """Append the next rows (n, W) of bits."""
        for writer, mask in zip(self.writers, self.output_format.class_masks(rows), strict=True):
            writer.write(mask)


class ClassRasters(RasterSink):
    """The open masks of all classes of an image with a place."""

    def __init__(self, output_format: OverlapFormat, rasters: Sequence[MaskRaster]) -> None:
        self.output_format = output_format
        self.rasters = rasters

    def write(self, rows: np.ndarray, missing: np.ndarray | None = None) -> None:
        """Append the next rows (n, W) of bits."""
        for raster, mask in zip(self.rasters, self.output_format.class_masks(rows), strict=True):
            raster.write(mask, missing)


class PagesWriter:
    """A TIFF of a page for each class, written whole once its rows have come; a context."""

    def __init__(self, file: BinaryIO, classes: int) -> None:
        self.file = file
        self.classes = classes
        self.rows: list[np.ndarray] = []

    def write(self, rows: np.ndarray) -> None:
        """Append the next rows (n, W) of bits."""
        self.rows.append(rows)

    def __enter__(self) -> "PagesWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            bits = np.concatenate(self.rows)
            write_pages(self.file, [(bits >> bit & 1).astype(np.uint8) for bit in range(self.classes)])


def _make_folder(file: Path) -> Path:
    """The file itself, after its folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
