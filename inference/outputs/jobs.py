"""Jobs: an input each, and where its outputs go."""

import math
from abc import ABC
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from data_utils.image_io.formats import VolumeFile

# extensions of outputs
MASK = ".png"
OVERLAY = ".overlay.png"
PROBABILITIES = ".npy"
LEGEND = f"legend{OVERLAY}"


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """An input and the files of its prediction.

    Args:
        image: its file, or the first one of several.
        size: (H, W) or (D, H, W); None if the header cannot be read, which the job then reports.
        output: the path of its outputs without extension.
        truth: file and page of its true mask, if there is one.
        spacing: (z, y, x) in mm; only volumes have one.

    Attributes:
        extensions: what stands for the extension of an output here.
        disk_copies: how often its outputs are on the disk while they are written.
        smaller_tile: a --tile-size that takes little memory.
        shares_batches: whether several may be computed together.
    """

    image: Path
    size: tuple[int, ...] | None
    output: Path
    truth: tuple[Path, int] | None = None
    spacing: tuple[float, ...] | None = None

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

    def file(self, extension: str) -> Path:
        """One of its outputs."""
        return self.output.with_name(self.output.name + self.extensions.get(extension, extension))


@dataclass(frozen=True, kw_only=True)
class ImageJob(Job):
    """An image: a page of its file."""

    page: int = 0

    disk_copies = 1
    smaller_tile = 512
    shares_batches = True

    @property
    def name(self) -> str:
        if self.page == 0:
            return str(self.image)
        return f"{self.image} page {self.page + 1}"


@dataclass(frozen=True, kw_only=True)
class VolumeJob(Job):
    """A volume, of one file or one for each channel."""

    volume: VolumeFile

    extensions: ClassVar[dict[str, str]] = {MASK: ".nii.gz", PROBABILITIES: ".probabilities.nii.gz"}
    disk_copies = 2  # probabilities are first written as they are, then compressed
    smaller_tile = 64
    shares_batches = False

    @property
    def files(self) -> tuple[str, ...]:
        return self.volume.paths
