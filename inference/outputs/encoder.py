"""How predictions are written as masks and shown, and how such masks are read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volumes import write_volume
from data_utils.image_io.writers import MASK_LEVEL, PagesWriter, PngWriter
from data_utils.targets.reader import MaskReader
from data_utils.visualize import legend, overlay
from inference.outputs.jobs import MASK, ImageJob, Job, MaskFile, VolumeJob
from runtime.errors import SettingsError
from runtime.files import replaced_file
from unet.config import UNetConfig


class LegendEntry(NamedTuple):
    """What is said of a color below a picture."""

    color: tuple[int, int, int]
    text: str


class MaskFiles:
    """The open files of an image's mask, which are written as its rows come."""

    def __init__(self, encoder: MaskEncoder, writers: Sequence[PngWriter | PagesWriter]) -> None:
        self.encoder = encoder
        self.writers = writers

    def write(self, rows: np.ndarray) -> None:
        """Append the next rows of a prediction, (n, W)."""
        for writer, values in zip(self.writers, self.encoder.encode_all(rows), strict=True):
            writer.write(values)


class MaskEncoder(ABC):
    """The mask of a prediction, and its picture.

    Attributes:
        reader: reads such masks, and true ones.
        names: what the colors stand for.
        colors: (N, 3) uint8, one for each name.
        mask_extensions: those of the files of a mask, as `Job.file` takes them; most masks are one file.
        class_folders: the folder of each class's masks, where classes have masks of their own.
    """

    mask_extensions: Sequence[str] = (MASK,)
    class_folders: Sequence[str] = ()
    reader: MaskReader
    names: Sequence[str]
    colors: np.ndarray

    @classmethod
    @abstractmethod
    def of_model(cls, config: UNetConfig) -> MaskEncoder:
        """The encoder that the config.json of a model calls for."""

    @abstractmethod
    def encode(self, rows: np.ndarray) -> np.ndarray:
        """A prediction (H, W) or (D, H, W) -> mask values; colors have a last axis of 3."""

    def for_file(self, file: Path) -> MaskEncoder:
        """The encoder of a mask that is the only one, in this file. SettingsError where it cannot be in such a file."""
        if file.suffix.lower() != MASK:
            raise SettingsError(f"--output {file}: masks of this model are PNG files; give a folder, or a file .png")
        return self

    def encode_all(self, rows: np.ndarray) -> list[np.ndarray]:
        """The mask values for each of `mask_extensions`."""
        return [self.encode(rows)]

    @contextmanager
    def open_masks(self, job: ImageJob, size: tuple[int, int]) -> Iterator[MaskFiles]:
        """The files of the mask of an image of (H, W), which take their places when the context ends."""
        with ExitStack() as stack:
            writers = []
            for extension in self.mask_extensions:
                file = stack.enter_context(replaced_file(_with_folder(job.file(extension))))
                writers.append(stack.enter_context(PngWriter(file, size, MASK_LEVEL)))
            yield MaskFiles(self, writers)

    def write_volume(self, job: VolumeJob, prediction: np.ndarray) -> None:
        """Write the files of the mask of a volume, from its prediction (D, H, W)."""
        with ExitStack() as stack:
            for extension, values in zip(self.mask_extensions, self.encode_all(prediction), strict=True):
                file = stack.enter_context(replaced_file(_with_folder(job.file(extension))))
                write_volume(file, values, job.volume)

    def written_mask(self, job: Job) -> MaskFile:
        """What reads a mask that was written."""
        return job.file(MASK), 0

    def written_volume(self, job: VolumeJob) -> VolumeFile:
        """What reads the mask of a volume that was written."""
        return VolumeFile((str(job.file(MASK)),))

    @abstractmethod
    def check_volume(self, name: str) -> None:
        """ImageError, with `name`, where masks of volumes cannot hold the values."""

    def shades(self, rows: np.ndarray) -> np.ndarray:
        """A prediction (H, W) as uint8 indices of `colors`, 0 where nothing is drawn on an image."""
        return rows

    def overlay(self, image: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """A uint8 image (H, W, 3) with its prediction (H, W) drawn on it."""
        return overlay(image, rows, self.colors)

    def legend(self) -> Image.Image:
        """What the colors of overlays mean."""
        return legend(self.names, self.colors)

    def legend_entries(self, rows: np.ndarray) -> list[LegendEntry]:
        """What a page says of a prediction (H, W): the share of each name."""
        shares = np.bincount(rows.ravel(), minlength=len(self.names)) / rows.size
        entries = []
        for color, name, share in zip(self.colors.tolist(), self.names, shares, strict=True):
            entries.append(LegendEntry(tuple(color), f"{name} {share:.1%}"))
        return entries


def _with_folder(file: Path) -> Path:
    """The file, whose folder is there now."""
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
