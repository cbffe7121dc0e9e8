"""The formats of volumes: one class for each, in one list."""

from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np

from data_utils.image_io.formats import TIFF_SUFFIXES, PageFile, check_memory
from data_utils.image_io.nifti import NiftiVolume
from data_utils.image_io.reader import read_image, read_mask
from data_utils.image_io.stored_volume import Spacing, StoredVolume
from data_utils.image_io.text_headers import open_meta_image, open_nrrd
from data_utils.image_io.tiff import is_tiff, page_numbers, read_slices
from runtime.documents import check_regular


class StackVolume(StoredVolume):
    """A `.npy` of (z, y, x) or (z, y, x, C), or a TIFF whose pages are the slices: a grid along the world's axes."""

    def __init__(self, path: str, spacing: Spacing | None) -> None:
        self.path = path
        self.pages: list[int] = []
        self.array = self._map()
        if self.array is None:
            self.pages = page_numbers(Path(path))
            first = read_image(PageFile(path, self.pages[0]), path)
            height, width, self.channels = first.shape
            depth = len(self.pages)
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
            for plane, page in zip(voxels, self.pages, strict=True):
                pixels = read_image(PageFile(self.path, page), self.path)
                if (pixels.shape, pixels.dtype) != (plane.shape, plane.dtype):
                    raise ValueError(f"page {page + 1} has another size or type than the first; a stack has one")
                plane[:] = pixels
        return voxels.transpose(2, 1, 0, 3)

    def read_labels(self) -> np.ndarray:
        if self.array is not None:
            return self.read()
        check_memory(prod(self.shape) * self.dtype.itemsize, "the volume")
        planes = [read_mask(PageFile(self.path, page), self.path) for page in self.pages]
        if {plane.shape for plane in planes} != {self.shape[1::-1]}:
            raise ValueError("its pages differ in size; a stack has one for all")
        return np.stack(planes)[..., None].transpose(2, 1, 0, 3)


# how names of files end, in small letters: what opens them, which may raise any error
FORMATS: dict[str, Callable[[str], StoredVolume]] = {
    ".nii": NiftiVolume,
    ".nii.gz": NiftiVolume,
    ".nrrd": open_nrrd,
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
