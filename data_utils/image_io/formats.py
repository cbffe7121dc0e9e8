"""The sources of pictures and volumes, and one error for files that cannot be opened or decoded."""

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from runtime.errors import DataError, ImageError, UserError, one_line
from runtime.machine import available_bytes
from unet.config import MaskValue


class EmbeddedImage(ABC):
    """An image that is made from other files whenever it is read: a small object that can be pickled."""

    @abstractmethod
    def render(self) -> bytes | np.ndarray:
        """The bytes of an image file, or pixels. Raises DataError, with the file that the image is made from."""


class RenderedMask(EmbeddedImage):
    """A mask that is rendered from annotations.

    Attributes:
        is_drawn: whether its values are the classes of annotations; else those of the file that it is made from.
    """

    is_drawn: ClassVar[bool] = True

    @abstractmethod
    def render(self) -> np.ndarray:
        """Mask values, (H, W) uint8 or uint16. Raises DataError, with the file and the annotation."""

    def render_objects(self) -> tuple[np.ndarray, np.ndarray]:
        """The number of each pixel's object, (H, W), 0 for none; and the mask value of each number, from 0.

        Raises DataError as `render` does, and if the annotations do not tell objects apart.
        """
        raise DataError("these annotations tell no objects apart; leave out --task objects")

    def objects(self) -> Counter[int]:
        """How many objects of annotations have each mask value, of files none. Raises DataError as `render` does."""
        return Counter()

    def render_part(self, rows: tuple[int, int], columns: tuple[int, int]) -> np.ndarray:
        """Rows [top, bottom) and columns [left, right) of the mask that `render` gives."""
        return self.render()[slice(*rows), slice(*columns)]


class ClassLayers(NamedTuple):
    """The classes of a label's files, or of the channels of its only file: each holds the mask of one class.

    Args:
        bits: the bit of each class; None for a class that is left out.
        unknown: the classes that have no file.
        ignored: mask values of unknown pixels.
    """

    bits: tuple[int | None, ...]
    unknown: tuple[int, ...] = ()
    ignored: tuple[MaskValue, ...] = ()


class Segments(NamedTuple):
    """What the segments of a DICOM label become in a label of numbers.

    Args:
        values: the name of each class, and its mask value, or its bit if classes may overlap; others are left out.
        are_bits: whether classes may overlap.
        outside: the mask value of voxels in no segment.
    """

    values: tuple[tuple[str, int], ...]
    are_bits: bool = False
    outside: int = 0


class VolumeFile(NamedTuple):
    """The file of a volume, or a file for each channel; and the spacing (z, y, x) in mm if the files have none.

    Args:
        layers: the classes of the files or channels of a label whose classes may overlap.
        grid_of: the image that a label lies on whose own file does not say where it lies.
        is_series: whether the files are those of one DICOM series, whose slices are one channel.
        segments: what the segments become, if the files are SEG or RTSTRUCT; `grid_of` is their image.
    """

    paths: tuple[str, ...]
    spacing: tuple[float, float, float] | None = None
    layers: ClassLayers | None = None
    grid_of: "VolumeFile | None" = None
    is_series: bool = False
    segments: Segments | None = None


class BandSource(NamedTuple):
    """Bands of a TIFF, or of several that hold some each.

    Args:
        paths: the files.
        bands: names, or numbers from 1, of the bands that are read; empty for all.
        page: the page of each file.
    """

    paths: tuple[str, ...]
    bands: tuple[str, ...] = ()
    page: int = 0


class PageFile(NamedTuple):
    """A file, on the disk or in memory, or a page of it.

    Args:
        path: its path, or its bytes.
        page: None for the first one of a file that is used as a whole.
        reads_place: whether a TIFF may have a place in the world; else it is a picture, whatever its tags say.
        more_channels: further pages, if each page is a channel of one image.
    """

    path: str | Path | bytes
    page: int | None = None
    reads_place: bool = True
    more_channels: tuple[int, ...] = ()


class PointSource(NamedTuple):
    """The points of an image, as they are stored in their file.

    Args:
        file: the file that lists them.
        space: the unit and axes of positions, as in `PointTable`.
        positions: (K, n) float64, (x, y) or (x, y, z); the center of the first pixel is 0.
        states: (K,) int64, see `data_utils.point_states`.
        size: (H, W) of the image that they were made for, if the file has it.
    """

    file: str
    space: str
    positions: np.ndarray
    states: np.ndarray
    size: tuple[int, int] | None = None


class Box(NamedTuple):
    """Rows [top, bottom) and columns [left, right) of a scene."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def ranges(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The rows and the columns, as rasterio takes them."""
        return (self.top, self.bottom), (self.left, self.right)


@dataclass(frozen=True)
class SceneWindow:
    """A window of an image, or of an image's mask.

    Args:
        source: the image or mask.
        name: the name of the image or mask in messages.
        size: (H, W) of the image.
    """

    source: "ImageSource"
    name: str
    size: tuple[int, int]
    box: Box


ImageSource = (
    str
    | Path
    | bytes
    | Image.Image
    | np.ndarray
    | EmbeddedImage
    | SceneWindow
    | VolumeFile
    | PointSource
    | BandSource
    | PageFile
)


def is_drawn(source: ImageSource) -> bool:
    """Whether a mask is drawn from annotations, whose values are classes; else its values are those of a file."""
    mask = source.source if isinstance(source, SceneWindow) else source
    return isinstance(mask, RenderedMask) and mask.is_drawn


TIFF_SUFFIXES = (".tif", ".tiff")
VIDEO_REMEDY = "take the frames out of videos: ffmpeg -i VIDEO frame_%06d.png"
MICROSCOPY_REMEDY = "export them as TIFF, as from Fiji or QuPath"
FORMAT_REMEDIES = {  # what to do with files of other formats, by their extension
    **dict.fromkeys((".heic", ".heif"), "convert HEIC to JPEG or PNG"),
    **dict.fromkeys((".mp4", ".mov", ".avi", ".mkv", ".webm"), VIDEO_REMEDY),
    **dict.fromkeys((".zip", ".7z", ".rar", ".tgz"), "unpack archives first"),
    **dict.fromkeys((".cr2", ".cr3", ".nef", ".arw", ".dng"), "develop raw photographs as TIFF or PNG"),
    **dict.fromkeys((".czi", ".lif", ".nd2", ".svs", ".vsi", ".oib"), MICROSCOPY_REMEDY),
    **dict.fromkeys((".mgz", ".mgh", ".img", ".hdr"), "convert volumes of FreeSurfer and Analyze to NIfTI"),
    **dict.fromkeys((".npz", ".mat", ".h5", ".hdf5", ".pkl", ".pt"), "store the array of each image as .npy"),
    ".shp": "make a GeoPackage of a shapefile: ogr2ogr areas.gpkg areas.shp",
    ".roi": "make masks of ImageJ's selections (docs/preparing-masks.md)",
    **dict.fromkeys((".xlsx", ".xls", ".ods", ".tsv"), "save tables as .csv"),
    **dict.fromkeys((".pdf", ".psd", ".svg", ".ai", ".xcf"), "export them as PNG"),
}
UNCHECKED_BYTES = 2**27  # up to so many bytes are allocated without asking how much memory is free
INFINITE_VALUE = 1e30  # numbers so far from 0 count as infinite: float32 does not hold their squares
COPIES = 3  # copies of a picture that are in memory while it is decoded, converted and resized
TOO_LARGE_MESSAGE = (
    " Store it as .npy, or as TIFF of 8 bits, or grey of 16 bits or float, uncompressed or in tiles; to train on it,"
    " give --crop-size without --cache"
)

# set once, not around each file: the filters belong to all threads; a far larger image is still an error
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def page_file(source: ImageSource) -> PageFile | None:
    """The file of a source that is a file or a page of one; None for all others."""
    if isinstance(source, PageFile):
        return source
    return PageFile(source) if isinstance(source, str | Path) else None


def source_files(source: ImageSource) -> tuple[str, ...]:
    """The files of a source; empty if it is not a file of its own."""
    if isinstance(source, VolumeFile | BandSource):
        return source.paths
    file = page_file(source)
    return () if file is None or isinstance(file.path, bytes) else (str(file.path),)


def is_visible_file(name: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name ends with one of `suffixes`, in any case, and the file is not hidden."""
    return name.lower().endswith(suffixes) and not name.startswith(".")


def format_remedy(names: Iterable[str]) -> str:
    """The advice for files of formats that are not read here, as `; do this`; empty if there is none."""
    for name in names:
        # a name may be an extension alone
        remedy = FORMAT_REMEDIES.get("." + name.lower().rpartition(".")[2])
        if remedy:
            return f"; {remedy}"
    return ""


@contextmanager
def image_errors(name: str) -> Iterator[None]:
    """A context in which any error of a library that opens or decodes a file becomes an ImageError with `name`.

    At a damaged file a decoder may raise anything: Pillow, tifffile, nibabel and NumPy were seen to raise thirty types.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = one_line(error)
        if isinstance(error, UnidentifiedImageError):  # Pillow names an object in memory
            file = name.partition(": ")[0]
            reason = f"empty, not an image, or in a format that is not read here{format_remedy([file])}"
        if isinstance(error, Image.DecompressionBombError):
            reason += TOO_LARGE_MESSAGE
        raise ImageError(f"{name} cannot be read ({reason})") from error


def check_finite(pixels: np.ndarray, name: str) -> None:
    """Raises ImageError, with `name`, for pixels that are NaN or count as infinite; masked ones may be anything."""
    if pixels.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):  # to float16 the limit is infinite
        are_finite = np.abs(pixels) < INFINITE_VALUE
    if not np.ma.filled(are_finite, True).all():
        limit = f"numbers beyond {INFINITE_VALUE:g} count as infinite"
        raise ImageError(f"{name}: has pixels that are not numbers (NaN or infinite); {limit}")


def check_memory(size: int, name: str) -> None:
    """Raises ValueError if `size` bytes are more than this process may have: a small file may claim much."""
    available = available_bytes() if size > UNCHECKED_BYTES else size  # asking takes time
    if size > available:
        raise ValueError(f"{name} needs {size / 1e9:,.1f} GB of memory, {available / 1e9:,.1f} GB are free")
