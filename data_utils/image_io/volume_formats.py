"""The formats of volumes: one class for each, in one list."""

import logging
import warnings
from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from data_utils.image_io.formats import TIFF_SUFFIXES, PageFile, check_memory
from data_utils.image_io.reader import read_image, read_mask, stored_palette
from data_utils.image_io.stored_volume import FileVolume, Spacing, StoredVolume
from data_utils.image_io.text_headers import open_meta_image, open_nrrd
from data_utils.image_io.tiff import is_tiff, read_slices, slice_pages
from runtime.documents import check_regular

MM = {"unknown": 1.0, "mm": 1.0, "meter": 1e3, "micron": 1e-3}  # mm in each of NIfTI's units


class NiftiVolume(FileVolume):
    """A NIfTI file; channels are the fourth axis, or the fifth. `image` is nibabel's."""

    def __init__(self, path: str) -> None:
        nibabel = load_nibabel()
        self.image = nibabel.load(path)
        if not isinstance(self.image, nibabel.Nifti1Image):
            raise ValueError(f"a {type(self.image).__name__}, not a NIfTI volume")
        stored = self.image.dataobj
        sizes = tuple(map(int, stored.shape))
        if len(sizes) == 5 and sizes[3] == 1:  # SimpleITK writes channels so, behind one of time
            sizes = (*sizes[:3], sizes[4])
        if len(sizes) not in (3, 4) or min(sizes) < 0:
            sides = " x ".join(map(str, sizes))
            raise ValueError(f"it has {len(sizes)} axes, {sides}; a volume has 3, or 4 with its channels")
        is_compressed = path.lower().endswith(".gz")
        affine = self.image.affine.copy()
        affine[:3] *= MM[self.image.header.get_xyzt_units()[0]]
        super().__init__(
            path,
            sizes if len(sizes) == 4 else (*sizes, 1),
            channel_axis=3,
            stored_type=self.image.header.get_data_dtype(),
            skipped=0 if is_compressed else stored.offset,
            is_compressed=is_compressed,
            affine=affine,
            skipped_inside=stored.offset,
            scale=(stored.slope, stored.inter),
        )

    @property
    def has_place(self) -> bool:
        """Whether the header says where the voxels lie; else nibabel makes a place up."""
        return bool(self.image.header["sform_code"] > 0 or self.image.header["qform_code"] > 0)


@cache
def load_nibabel() -> Any:
    """Import nibabel, silent about odd headers; only here, so that users with images do not wait for it."""
    import nibabel

    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="nibabel")
    return nibabel


class StackVolume(StoredVolume):
    """A `.npy` of (z, y, x) or (z, y, x, C), or a TIFF whose pages are the slices: a grid along the world's axes.

    Where ImageJ or OME says that pages of several slices are channels, a slice has a page for each.
    """

    def __init__(self, path: str, spacing: Spacing | None) -> None:
        self.path = path
        self.slices: list[PageFile] = []
        self.array = self._map()
        if self.array is None:
            for page, *others in slice_pages(Path(path)):
                self.slices.append(PageFile(path, page, more_channels=tuple(others)))
            first = read_image(self.slices[0], path)
            height, width, self.channels = first.shape
            depth = len(self.slices)
            self.dtype = first.dtype
        else:
            depth, height, width, self.channels = self.array.shape
            self.dtype = self.array.dtype
        self.shape = (width, height, depth)
        z, y, x = spacing or (1.0, 1.0, 1.0)
        self.affine = np.diag([x, y, z, 1.0])

    def _map(self) -> np.ndarray | None:
        """(z, y, x, C) of a file whose voxels lie one behind the other, mapped; None for a TIFF of pages."""
        if is_tiff(self.path):
            return read_slices(Path(self.path))
        array = np.lib.format.open_memmap(self.path, mode="r")
        if array.ndim not in (3, 4):
            raise ValueError(f"its shape is {array.shape}, not (z, y, x) or (z, y, x, channels)")
        return array.view(np.uint8 if array.dtype == bool else array.dtype).reshape(*array.shape[:3], -1)

    def read(self) -> np.ndarray:
        voxels = self.array
        if voxels is None:
            shape = (*self.shape[::-1], self.channels)
            check_memory(prod(shape) * self.dtype.itemsize, "the volume")
            voxels = np.empty(shape, self.dtype)
            for plane, source in zip(voxels, self.slices, strict=True):
                pixels = read_image(source, self.path)
                if (pixels.shape, pixels.dtype) != (plane.shape, plane.dtype):
                    page = (source.page or 0) + 1
                    raise ValueError(f"page {page} has another size or type than the first; a stack has one")
                plane[:] = pixels
        return voxels.transpose(2, 1, 0, 3)

    @property
    def label_channels(self) -> int:
        has_indices = bool(self.slices) and stored_palette(self.slices[0], self.path) is not None
        return 1 if has_indices else self.channels

    def read_labels(self) -> np.ndarray:
        if self.array is not None:
            return self.read()
        check_memory(prod(self.shape) * self.dtype.itemsize, "the volume")
        planes = [read_mask(source, self.path) for source in self.slices]
        if {plane.shape for plane in planes} != {self.shape[1::-1]}:
            raise ValueError("its pages differ in size; a stack has one for all")
        return np.stack(planes)[..., None].transpose(2, 1, 0, 3)


# how names of files end, in small letters: what opens them, which may raise any error
FORMATS: dict[str, Callable[[str], StoredVolume]] = {
    ".nii": NiftiVolume,
    ".nii.gz": NiftiVolume,
    ".nrrd": open_nrrd,
    ".nhdr": open_nrrd,
    ".mha": open_meta_image,
    ".mhd": open_meta_image,
}
VOLUME_SUFFIXES = tuple(FORMATS)
STACK_SUFFIXES = (".npy", *TIFF_SUFFIXES)  # volumes only if the user says so


def open_stored(path: str, spacing: Spacing | None) -> StoredVolume:
    """The header of a volume file; `spacing`, (z, y, x) in mm, is for files that hold none."""
    check_regular(path)
    for suffix, open_format in FORMATS.items():
        if path.lower().endswith(suffix):
            return open_format(path)
    if not path.lower().endswith(STACK_SUFFIXES):
        raise ValueError(f"it is none of {', '.join((*VOLUME_SUFFIXES, *STACK_SUFFIXES))}")
    return StackVolume(path, spacing)
