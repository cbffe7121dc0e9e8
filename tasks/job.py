"""Jobs: an input each, and the paths of its outputs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from data_utils.image_io.class_masks import ClassMasks
from data_utils.image_io.formats import BandSource, PageFile, PointSource, RenderedMask, VolumeFile, source_files
from data_utils.image_io.places import Place
from data_utils.image_io.volume_formats import Spacing

# extensions of outputs
MASK = ".png"
OVERLAY = ".overlay.png"
PROBABILITIES = ".npy"
UNCERTAINTY = ".uncertainty.png"
LEGEND = f"legend{OVERLAY}"
NIFTI = ".nii.gz"
STRUCTURES = ".rtstruct.dcm"

# {extension of an image's output: its extension for rasters, for volumes}
OF_RASTERS = {MASK: ".tif", PROBABILITIES: ".probabilities.tif", UNCERTAINTY: ".uncertainty.tif"}
OF_VOLUMES = {MASK: NIFTI, PROBABILITIES: ".probabilities.nii.gz", UNCERTAINTY: ".uncertainty.nii.gz"}
OF_SERIES = OF_VOLUMES | {MASK: ".dcm"}

# a page of a file, a mask that is rendered from other files or channels, or a volume of several files
MaskFile = PageFile | ClassMasks | RenderedMask | VolumeFile


@dataclass(frozen=True, kw_only=True)
class Job:
    """An input and the files of its prediction: an image, a raster, which has a place, or a volume.

    Args:
        source: the page, the bands or the volume that the model reads.
        size: (H, W) or (D, H, W); None if the header cannot be read, which the job then reports.
        root: the folder of all outputs.
        stem: the path of its file's outputs below `root`, without extension.
        number: which of the images of its file it is, from 1 on; 0 for the only one.
        pages: how many images its file has.
        truth: its true mask, or its true points, if there are some.
        named: the file of its mask, if the user has named it.
        place: the place of a georeferenced image, whose outputs are georeferenced too.
        spacing: (z, y, x) in mm, of a volume.
        writes_segments: whether its mask is a DICOM segmentation, which holds all classes.
    """

    source: PageFile | BandSource | VolumeFile
    size: tuple[int, ...] | None
    root: Path
    stem: Path
    number: int = 0
    pages: int = 1
    truth: MaskFile | PointSource | None = field(default=None, compare=False)  # it may hold dictionaries and arrays
    named: Path | None = None
    place: Place | None = None
    spacing: Spacing | None = None
    writes_segments: bool = False

    @property
    def volume(self) -> VolumeFile | None:
        """The files of a volume: one, one for each channel, or those of a series; None for an image."""
        return self.source if isinstance(self.source, VolumeFile) else None

    @property
    def page(self) -> int:
        """The page of its file."""
        return 0 if isinstance(self.source, VolumeFile) else self.source.page or 0

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are read."""
        return source_files(self.source)

    @property
    def image(self) -> Path:
        """Its file, the first one of several, or the folder of a series."""
        is_series = self.volume is not None and self.volume.is_series
        if not is_series:
            return Path(self.files[0])
        return Path(os.path.commonpath(self.files) or Path.cwd())  # of files of the working directory: no path

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.image} page {self.page + 1}" if self.number else str(self.image)

    @property
    def page_stem(self) -> Path:
        """The path of its outputs below `root`, without extension: images of one file are numbered."""
        return self.stem.with_name(f"{self.stem.name}_{self.number:04}") if self.number else self.stem

    @property
    def output(self) -> Path:
        """The path of its outputs without extension."""
        return self.root / self.page_stem

    @property
    def extensions(self) -> Mapping[str, str]:
        """{extension of an image's output: its extension for this job}, where they differ."""
        if self.writes_segments:
            return OF_SERIES
        if self.volume is not None:
            return OF_VOLUMES
        if self.place is not None:
            return OF_RASTERS
        return {}

    @property
    def relative_name(self) -> str:
        """Its name in tables of all inputs, as training has it: its path below the given folder."""
        name = f"{self.page_stem.name}{self.image.suffix}" if self.number else self.image.name
        return self.stem.with_name(name).as_posix()

    def file(self, extension: str) -> Path:
        """One of its outputs; an extension `class/.png` stands for a file in a folder `class` of all outputs."""
        if self.named is not None and extension == MASK:
            return self.named
        folder, _, ending = extension.rpartition("/")
        if self.writes_segments and ending == MASK:
            folder = ""
        return self.root / folder / self.page_stem.with_name(self.output.name + self.extensions.get(ending, ending))
