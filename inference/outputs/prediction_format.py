"""Formats of predictions: how masks are written, shown and read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple, Protocol

import numpy as np
from PIL import Image

from data_utils.image_io.formats import PageFile, VolumeFile
from data_utils.image_io.volumes import VolumeHeader, write_volume
from data_utils.image_io.writers import MASK_LEVEL, PngWriter
from data_utils.targets.reader import MaskReader
from data_utils.visualize import legend, overlay
from inference.decoding.decoder import Decoder
from inference.outputs.jobs import MASK, ImageJob, Job, MaskFile, RasterJob, VolumeJob
from inference.outputs.rasters import open_mask_raster
from runtime.files import replace_file
from unet.config import MaskValue, UNetConfig


class MaskSink(Protocol):
    """The open file of a mask."""

    def write(self, rows: np.ndarray) -> None:
        """Append the next rows of mask values."""


class LegendEntry(NamedTuple):
    """The text for a color below a picture; None where it belongs to no color."""

    color: tuple[int, int, int] | None
    text: str


Properties = dict[str, int | str]  # the properties of a polygon


class PredictionFormat(ABC):
    """How predictions are written and shown.

    Attributes:
        outputs: a word for the files of all images.
        extensions: the extensions of further files beside each of them.
        has_objects: whether masks number objects, which --coco collects.
        writes_rasters: whether masks of georeferenced images are georeferenced TIFFs.
        unsupported: for extensions of --uncertainty and the like that such predictions do not have, the reason.
        names: the meanings of the colors.
        colors: (N, 3) uint8, one for each name.
        mask_extensions: the extensions of an image's files for `Job.file`; most formats have one file.
        class_folders: the folder of each class's masks, if each class has its own masks.
        joined_files: the names of the files that join the results of all images.
    """

    outputs: ClassVar[str]
    extensions: ClassVar[Sequence[str]] = ()
    has_objects: ClassVar[bool] = False
    writes_rasters: ClassVar[bool] = False
    unsupported: ClassVar[Mapping[str, str]] = {}
    mask_extensions: Sequence[str] = (MASK,)
    class_folders: Sequence[str] = ()
    joined_files: Sequence[str] = ()
    names: Sequence[str]
    colors: np.ndarray

    @classmethod
    @abstractmethod
    def from_config(cls, config: UNetConfig) -> PredictionFormat:
        """The format that the config.json of a model calls for."""

    def for_file(self, file: Path) -> PredictionFormat:
        """The format of the only image, in this file. Raises SettingsError if such a file cannot hold it."""
        return self

    @property
    def channel_names(self) -> Sequence[str]:
        """The meaning of each channel of the probabilities."""
        return self.names

    @property
    def object_classes(self) -> Sequence[str]:
        """The classes of objects; empty if there are no objects."""
        return self.names[1:] if self.has_objects else ()

    @abstractmethod
    def mask_file(self, job: Job) -> Path:
        """The path of the mask or points of a job."""

    def file(self, job: Job, extension: str) -> Path:
        """The path of a file of a job."""
        return self.mask_file(job) if extension == MASK else job.file(extension)

    def files(self, job: Job, extensions: Sequence[str]) -> list[Path]:
        """The paths of all files that may be written or removed for a job, given their extensions."""
        return [self.file(job, extension) for extension in extensions]

    def legend(self) -> Image.Image | None:
        """The meaning of the colors of overlays; None if they have no meaning."""
        return legend(self.names, self.colors)

    def write_joined(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Write the file that joins the results of all images, after each image has its own file."""
        return


class MaskFormat(PredictionFormat):
    """The mask of a prediction, and its picture.

    Attributes:
        reader: reads such masks, and true ones.
    """

    outputs = "masks"
    writes_rasters = True
    reader: MaskReader

    @abstractmethod
    def mask_values(self, rows: np.ndarray) -> np.ndarray:
        """A prediction (H, W) or (D, H, W) -> mask values; colors have a last axis of 3."""

    def written_mask(self, job: Job) -> MaskFile:
        """The reader of a mask that was written."""
        return PageFile(self.mask_file(job))

    def reader_for(self, mask: MaskFile) -> MaskReader:
        """The reader of a written or true mask."""
        return self.reader

    def written_volume(self, job: VolumeJob) -> VolumeFile:
        """The reader of the mask of a volume that was written."""
        return VolumeFile((str(self.mask_file(job)),))

    def check_volume(self, name: str) -> None:
        """Raises ImageError, with `name`, if masks of volumes cannot hold the values; they hold whole numbers only."""

    def shades(self, rows: np.ndarray) -> np.ndarray:
        """A prediction (H, W) as uint8 indices of `colors`, 0 where nothing is drawn on an image."""
        return rows

    def overlay(self, image: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """A uint8 image (H, W, 3) with its prediction (H, W) drawn on it."""
        return overlay(image, rows, self.colors)

    def legend_entries(self, rows: np.ndarray) -> list[LegendEntry]:
        """The share of each name in a prediction (H, W), for a page."""
        shares = np.bincount(rows.ravel(), minlength=len(self.names)) / rows.size
        entries = []
        for color, name, share in zip(self.colors.tolist(), self.names, shares, strict=True):
            entries.append(LegendEntry(tuple(color), f"{name} {share:.1%}"))
        return entries

    def for_prediction(self, decoder: Decoder) -> MaskFormat:
        """The format for the prediction that `decoder` has read completely."""
        return self

    def mask_file(self, job: Job) -> Path:
        """The path of the mask of a job."""
        return job.file(MASK)

    def areas(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        """The areas that polygons outline in rows (n, W) of a prediction: layers of numbers, 0 for no area."""
        return [self.shades(rows)]

    def area_properties(self, layer: int, number: int, decoder: Decoder) -> Properties:
        """The properties of an area of `areas`, given its number."""
        return {"value": number}

    @property
    def written_values(self) -> Sequence[MaskValue]:
        """The values that masks hold, if they are values of classes."""
        return ()

    @contextmanager
    def open_mask(self, job: ImageJob, size: tuple[int, int], decoder: Decoder) -> Iterator[MaskSink]:
        """The file of an image's mask, which appears under its name when the context ends."""
        if isinstance(job, RasterJob):
            with open_mask_raster(job, job.file(MASK), size, self.written_values) as raster:
                yield raster
            return
        with replace_file(job.file(MASK)) as file, PngWriter(file, size, MASK_LEVEL) as writer:
            yield writer

    def write_volume(self, job: VolumeJob, prediction: np.ndarray) -> None:
        """Write the mask of a volume, from its prediction (D, H, W)."""
        with replace_file(job.file(MASK)) as file:
            write_volume(file, self.mask_values(prediction), job.volume)

    def write_tables(  # most masks stand alone
        self, files: Mapping[str, BinaryIO], decoder: Decoder, header: VolumeHeader | None
    ) -> None:
        """Write the files of `extensions` on a complete prediction; `header` is the header of a volume."""
