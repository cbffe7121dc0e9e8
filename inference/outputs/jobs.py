"""Jobs: an input each, and the paths of its outputs."""

import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from data_utils.image_io.class_masks import ClassChannels, ClassMasks
from data_utils.image_io.formats import BandSource, PageFile, PictureFile, RenderedMask, VolumeFile
from data_utils.image_io.places import Place
from data_utils.image_io.volume_formats import Spacing

# extensions of outputs
MASK = ".png"
OVERLAY = ".overlay.png"
PROBABILITIES = ".npy"
UNCERTAINTY = ".uncertainty.png"
LEGEND = f"legend{OVERLAY}"


# a page of a file, a mask that is rendered from other files or channels, or a volume of several files
MaskFile = PageFile | PictureFile | ClassMasks | ClassChannels | RenderedMask | VolumeFile


class PointRow(NamedTuple):
    """The place of an input's true points: a row of a table, which may be a folder of files."""

    table: Path
    row: int


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """An input and the files of its prediction.

    Args:
        image: its file, or the first one of several.
        size: (H, W) or (D, H, W); None if the header cannot be read, which the job then reports.
        output: the path of its outputs without extension.
        root: the folder of all outputs; None for the folder of `output`.
        truth: its true mask, or its true points, if there are some.
        spacing: (z, y, x) in mm; only volumes have one.
        named: the file of its mask, if the user has named it.

    Attributes:
        extensions: {extension of an output: its extension for jobs of this kind}.
        disk_copies: how many copies of its outputs are on the disk while they are written.
        smaller_tile: a --tile-size that takes little memory.
        shares_batches: whether several jobs may be computed together.
    """

    image: Path
    size: tuple[int, ...] | None
    output: Path
    root: Path | None = None
    truth: MaskFile | PointRow | None = field(default=None, hash=False)  # annotations hold dictionaries
    spacing: Spacing | None = None
    named: Path | None = None

    extensions: ClassVar[dict[str, str]] = {}
    disk_copies: ClassVar[int]
    smaller_tile: ClassVar[int]
    shares_batches: ClassVar[bool]

    @property
    def name(self) -> str:
        """Its name in messages."""
        return str(self.image)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are read."""
        return (str(self.image),)

    @property
    def pixels(self) -> int:
        """Its number of pixels or voxels."""
        if not self.size:
            return 0
        return math.prod(self.size)

    @property
    def relative_name(self) -> str:
        """Its name in tables of all inputs: the path of its file, relative to the given folder."""
        root = self.root or self.output.parent
        return self.output.relative_to(root).with_name(self.image.name).as_posix()

    def file(self, extension: str) -> Path:
        """One of its outputs; an extension `class/.png` stands for a file in a folder `class` of all outputs."""
        if self.named is not None and extension == MASK:
            return self.named
        folder, _, ending = extension.rpartition("/")
        root = self.root or self.output.parent
        name = self.output.name + self.extensions.get(ending, ending)
        return root / folder / self.output.parent.relative_to(root) / name


@dataclass(frozen=True, kw_only=True)
class ImageJob(Job):
    """An image: a page of its file, or bands of several files.

    Args:
        stored: the source that the model reads instead of the whole file: its bands, or the file as a picture.
    """

    page: int = 0
    stored: BandSource | PictureFile | None = None

    disk_copies = 1
    smaller_tile = 512
    shares_batches = True

    @property
    def name(self) -> str:
        return str(self.image) + self._page_text

    @property
    def relative_name(self) -> str:
        return super().relative_name + self._page_text

    @property
    def _page_text(self) -> str:
        return f" page {self.page + 1}" if self.page else ""

    @property
    def files(self) -> tuple[str, ...]:
        return self.stored.paths if isinstance(self.stored, BandSource) else (str(self.image),)

    @property
    def source(self) -> Path | BandSource | PictureFile:
        """The source that is read; `page` is the page in it."""
        return self.stored or self.image


@dataclass(frozen=True, kw_only=True)
class RasterJob(ImageJob):
    """An image whose file is georeferenced, as are its outputs."""

    place: Place

    disk_copies = 2  # rows are first written as they are, then compressed
    extensions: ClassVar[dict[str, str]] = {
        MASK: ".tif",
        PROBABILITIES: ".probabilities.tif",
        UNCERTAINTY: ".uncertainty.tif",
    }


@dataclass(frozen=True, kw_only=True)
class VolumeJob(Job):
    """A volume, of one file or one for each channel."""

    volume: VolumeFile

    extensions: ClassVar[dict[str, str]] = {
        MASK: ".nii.gz",
        PROBABILITIES: ".probabilities.nii.gz",
        UNCERTAINTY: ".uncertainty.nii.gz",
    }
    disk_copies = 2  # probabilities are first written as they are, then compressed
    smaller_tile = 64
    shares_batches = False

    @property
    def files(self) -> tuple[str, ...]:
        return self.volume.paths


class InputPages(NamedTuple):
    """An input whose headers have been read.

    Args:
        stem: the path of the input's outputs without extension, relative to the folder of all outputs.
        jobs: one for each page, at first without truth.
        page_stems: the stem of the outputs of each page.
    """

    stem: Path
    jobs: Sequence[Job]
    page_stems: Sequence[Path]


class Truth(Protocol):
    """The place where the truth of inputs is found."""

    def with_truths(self, inputs: Sequence[InputPages]) -> list[Job]:
        """The jobs of all pages of the inputs, each with its truth. Raises DataError if some have none."""
