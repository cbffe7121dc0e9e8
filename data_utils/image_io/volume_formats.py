"""Files of volumes as they are stored: NIfTI, formats of SimpleITK, and stacks (`.npy`, TIFF) without a spacing."""

import gzip
import logging
import os
import struct
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from data_utils.image_io.formats import TIFF_SUFFIXES, PageFile, check_memory
from data_utils.image_io.itk_headers import check_meta_image, check_nrrd
from data_utils.image_io.reader import read_image, read_mask
from data_utils.image_io.tiff import is_tiff, page_numbers
from runtime.documents import check_regular
from runtime.errors import ImageError

NIFTI_SUFFIXES = (".nii", ".nii.gz")
META_SUFFIXES = (".mha", ".mhd")
ITK_SUFFIXES = (".nrrd", *META_SUFFIXES)  # SimpleITK reads these
VOLUME_SUFFIXES = (*NIFTI_SUFFIXES, *ITK_SUFFIXES)
STACK_SUFFIXES = (".npy", *TIFF_SUFFIXES)  # volumes only if the user says so
MM = {"unknown": 1.0, "mm": 1.0, "meter": 1e3, "micron": 1e-3}  # mm in each of NIfTI's units
NIFTI2_BYTES = 540  # the length of a NIfTI-2 header, which is longer than the other
MOST_EXTENSIONS = 2**24  # bytes of a NIfTI header with its extensions
PIECE_BYTES = 2**22  # as much is decompressed at once
MOST_INFLATION = 1032  # bytes that a byte of deflate can become
ENDS_EARLY = "the file ends before its voxels do"

Spacing = tuple[float, float, float]


class StoredVolume(ABC):
    """A volume file whose header has been read.

    Attributes:
        shape: (x, y, z) in the file's own axes.
        channels: values of each voxel.
        dtype: NumPy's type of the voxels that `read` gives.
        affine: (4, 4) float64, from a voxel's (x, y, z) to mm, the world's axes pointing right, anterior, superior.
    """

    shape: tuple[int, ...]
    channels: int
    dtype: np.dtype
    affine: np.ndarray

    @abstractmethod
    def read(self) -> np.ndarray:
        """The voxels (x, y, z, C), as they lie in memory or in the file."""

    def read_labels(self) -> np.ndarray:
        """The voxels (x, y, z, 1) of a label."""
        return self.read()


class NiftiVolume(StoredVolume):
    """A NIfTI file; channels are the fourth axis. `image` is nibabel's, whose voxels are read when they are needed."""

    def __init__(self, path: str) -> None:
        nibabel = load_nibabel()
        self.path = path
        _check_extensions(path)
        self.image = nibabel.load(path)
        if not isinstance(self.image, nibabel.Nifti1Image):
            raise ValueError(f"a {type(self.image).__name__}, not a NIfTI volume")
        header = self.image.header
        self.shape, self.channels = spatial_shape(self.image.shape)
        self.slope = self.image.dataobj.slope
        self.intercept = self.image.dataobj.inter
        self.dtype = header.get_data_dtype()
        if self.is_scaled:
            self.dtype = np.result_type(self.dtype, np.float32)
        self.affine = self.image.affine.copy()
        self.affine[:3] *= MM[header.get_xyzt_units()[0]]

    @property
    def has_place(self) -> bool:
        """Whether the header says where the voxels lie; else nibabel makes a place up."""
        return bool(self.image.header["sform_code"] > 0 or self.image.header["qform_code"] > 0)

    @property
    def is_scaled(self) -> bool:
        """Whether the header says how the stored numbers become values."""
        return (self.slope, self.intercept) != (1, 0)

    def read(self) -> np.ndarray:
        voxels = self._decompress() if self.path.lower().endswith(".gz") else self._map_voxels()
        if self.is_scaled:
            voxels = voxels.astype(self.dtype)
            # a damaged scale, whose infinities are refused
            with np.errstate(over="ignore", invalid="ignore"):
                voxels *= self.dtype.type(self.slope)
                voxels += self.dtype.type(self.intercept)
        return voxels

    def _decompress(self) -> np.ndarray:
        """The voxels of a compressed file, decompressed in pieces into one array; nibabel would hold them twice."""
        dtype = self.image.header.get_data_dtype()
        claimed = prod(self.image.shape) * dtype.itemsize
        check_memory(claimed, "the volume")
        most = MOST_INFLATION * os.path.getsize(self.path)
        if claimed > most:
            raise EOFError(f"its header claims {claimed:,} bytes of voxels, and it can hold {most:,} at most")
        voxels = np.empty(prod(self.image.shape), dtype)
        missing = voxels.view(np.uint8).data
        with gzip.open(self.path) as file:
            file.seek(self.image.dataobj.offset)
            while missing:
                piece = file.read(min(PIECE_BYTES, len(missing)))
                if not piece:
                    raise EOFError(ENDS_EARLY)
                missing[: len(piece)] = piece
                missing = missing[len(piece) :]
        return voxels.reshape(*self.shape, self.channels, order="F")

    def _map_voxels(self) -> np.ndarray:
        """The voxels of a file that is not compressed, where they lie in it."""
        claimed = prod(self.image.shape) * self.image.header.get_data_dtype().itemsize
        if claimed > os.path.getsize(self.path):  # nibabel would set so much memory aside
            raise EOFError(ENDS_EARLY)
        return np.asarray(self.image.dataobj.get_unscaled()).reshape(*self.shape, self.channels, order="F")


def _check_extensions(path: str) -> None:
    """Raises ValueError if a header has megabytes of extensions: nibabel would read them, even from a small gzip file.

    The format: https://nifti.nimh.nih.gov/nifti-1 and nifti-2.
    """
    opener = gzip.open if path.lower().endswith(".gz") else open
    with opener(path, "rb") as file:
        head = file.read(NIFTI2_BYTES)
    for byte_order in "<>":
        for header_bytes, offset, kind in ((348, 108, "f"), (NIFTI2_BYTES, 168, "q")):
            if len(head) >= header_bytes and struct.unpack_from(f"{byte_order}i", head)[0] == header_bytes:
                (voxels_begin,) = struct.unpack_from(byte_order + kind, head, offset)
                if not voxels_begin <= MOST_EXTENSIONS:
                    raise ValueError(f"its voxels begin behind {voxels_begin:,.0f} bytes of a header")


class ItkVolume(StoredVolume):
    """A NRRD or MetaImage file, which SimpleITK reads; its world's axes point left, posterior, superior."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.itk = load_simpleitk(path)
        if path.lower().endswith(META_SUFFIXES):
            check_meta_image(path)
            self.format = "MetaImageIO"
        else:
            check_nrrd(path)
            self.format = "NrrdImageIO"
        reader = self.itk.ImageFileReader()
        reader.SetFileName(path)
        reader.SetImageIO(self.format)  # SimpleITK alone knows no .MHA in capitals
        with _last_line():
            reader.ReadImageInformation()
        if reader.GetDimension() != 3:
            raise ValueError(f"it has {reader.GetDimension()} axes, a volume has 3")
        self.shape = reader.GetSize()
        self.channels = reader.GetNumberOfComponents()
        self.dtype = self.itk.GetArrayFromImage(self.itk.Image([1, 1, 1], reader.GetPixelID(), self.channels)).dtype
        self.affine = np.eye(4)
        self.affine[:3, :3] = np.reshape(reader.GetDirection(), (3, 3)) * reader.GetSpacing()
        self.affine[:3, 3] = reader.GetOrigin()
        self.affine[:2] *= -1

    def read(self) -> np.ndarray:
        with _last_line():
            voxels = self.itk.GetArrayFromImage(self.itk.ReadImage(self.path, imageIO=self.format))
        return voxels.reshape(*self.shape[::-1], self.channels).transpose(2, 1, 0, 3)


@contextmanager
def _last_line() -> Iterator[None]:
    """A context that cuts an error of SimpleITK to its last line; the lines before it only name SimpleITK's sources."""
    try:
        yield
    except RuntimeError as error:
        raise ValueError(str(error).splitlines()[-1].strip()) from error


class StackVolume(StoredVolume):
    """A `.npy` of (z, y, x) or (z, y, x, C), or a TIFF whose pages are the slices: a grid along the world's axes."""

    def __init__(self, path: str, spacing: Spacing | None) -> None:
        self.path = path
        self.pages: list[int] = []
        if is_tiff(path):
            self.pages = page_numbers(Path(path))
            first = read_image(path, path, self.pages[0])
            height, width, self.channels = first.shape
            self.shape = (width, height, len(self.pages))
            self.dtype = first.dtype
        else:
            array = np.lib.format.open_memmap(path, mode="r")
            if array.ndim not in (3, 4):
                raise ValueError(f"its shape is {array.shape}, not (z, y, x) or (z, y, x, channels)")
            depth, height, width = array.shape[:3]
            self.shape = (width, height, depth)
            self.channels = 1 if array.ndim == 3 else array.shape[3]
            self.dtype = np.dtype(np.uint8) if array.dtype == bool else array.dtype
        z, y, x = spacing or (1.0, 1.0, 1.0)
        self.affine = np.diag([x, y, z, 1.0])

    def read(self) -> np.ndarray:
        if not self.pages:
            array = np.lib.format.open_memmap(self.path, mode="r").view(self.dtype)
            return array.reshape(*self.shape[::-1], self.channels).transpose(2, 1, 0, 3)
        shape = (*self.shape[::-1], self.channels)
        check_memory(prod(shape) * self.dtype.itemsize, "the volume")
        voxels = np.empty(shape, self.dtype)
        for plane, page in zip(voxels, self.pages, strict=True):
            pixels = read_image(self.path, self.path, page)
            if (pixels.shape, pixels.dtype) != (plane.shape, plane.dtype):
                raise ValueError(f"page {page + 1} has another size or type than the first; a stack has one for all")
            plane[:] = pixels
        return voxels.transpose(2, 1, 0, 3)

    def read_labels(self) -> np.ndarray:
        if not self.pages:
            return self.read()
        check_memory(prod(self.shape) * self.dtype.itemsize, "the volume")
        planes = [read_mask(PageFile(self.path, page), self.path) for page in self.pages]
        if {plane.shape for plane in planes} != {self.shape[1::-1]}:
            raise ValueError("its pages differ in size; a stack has one for all")
        return np.stack(planes)[..., None].transpose(2, 1, 0, 3)


def open_stored(path: str, spacing: Spacing | None) -> StoredVolume:
    """The header of a volume file; `spacing`, (z, y, x) in mm, is for files that hold none."""
    check_regular(path)
    if path.lower().endswith(NIFTI_SUFFIXES):
        return NiftiVolume(path)
    if path.lower().endswith(ITK_SUFFIXES):
        return ItkVolume(path)
    return StackVolume(path, spacing)


def spatial_shape(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """(x, y, z) and the number of channels, the fourth axis."""
    if len(shape) not in (3, 4) or min(shape) < 0:
        sides = " x ".join(map(str, shape))
        raise ValueError(f"it has {len(shape)} axes, {sides}; a volume has 3, or 4 with its channels")
    channels = shape[3] if len(shape) == 4 else 1
    return shape[:3], channels


@cache
def load_nibabel() -> Any:
    """Import nibabel, silent about odd headers; only here, so that users with images do not wait for it."""
    import nibabel

    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="nibabel")
    return nibabel


def load_simpleitk(path: str) -> Any:
    """Import SimpleITK. Raises ImageError, with the file that needs it, if it is not installed."""
    try:
        import SimpleITK
    except ImportError as error:
        raise ImageError(f"{path} needs SimpleITK to be read: pip install SimpleITK") from error
    return SimpleITK
