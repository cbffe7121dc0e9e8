"""Volumes as (D, H, W), D along z: read into RAS orientation, whatever axes their files have, and written back."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from data_utils.image_io.formats import DAMAGED_TIFF, ImageSource, VolumeFile, readable
from data_utils.image_io.volume_formats import (
    VOLUME_SUFFIXES,
    NiftiVolume,
    Spacing,
    StoredVolume,
    load_nibabel,
    open_stored,
)
from runtime.errors import DataError, ImageError

GZIP_LEVEL = 6  # as `gzip` has it
INFINITE = 1e30  # a voxel so far from 0, whose square float32 does not hold
SMALL, FAR = 1e-7, 1e7  # mm: the side of a voxel and an entry of an affine, beyond which a header is damaged
MASK_TYPES = ("uint8", "int16", "uint16", "int32", "int64")


class VolumeHeader(NamedTuple):
    """What is known of a volume without its voxels.

    size: (D, H, W) in RAS orientation: D along z from inferior, H along y from posterior, W along x from left.
    spacing: (z, y, x) in mm.
    channels: values of each voxel.
    dtype: NumPy's name of the type of the voxels as they are read.
    affine: (4, 4), from a voxel's (x, y, z) in RAS orientation to mm.
    stored_axes: for each axis of the file, the axis of RAS that it runs along, and 1, or -1 where it runs back.
    """

    size: tuple[int, int, int]
    spacing: Spacing
    channels: int
    dtype: str
    affine: np.ndarray
    stored_axes: tuple[tuple[int, int], ...]


def volume_stem(name: str) -> str:
    """A file's name without its extension, of `.nii.gz` without both."""
    suffix = next((suffix for suffix in sorted(VOLUME_SUFFIXES, key=len)[::-1] if name.lower().endswith(suffix)), None)
    return name[: -len(suffix)] if suffix else name.rpartition(".")[0] or name


def is_volume(path: str | Path) -> bool:
    """Whether the name ends like that of a file that is always a volume."""
    return str(path).lower().endswith(VOLUME_SUFFIXES)


def read_volume_header(source: ImageSource, name: str) -> VolumeHeader:
    """From the headers alone. Raises ImageError, with `name`, for what cannot be read or is no volume."""
    return _header(_open(source, name), name)


def read_volume(source: ImageSource, name: str) -> tuple[np.ndarray, VolumeHeader]:
    """(D, H, W, C) in the files' own value range, in RAS orientation, a view of the file's axes; and the header.

    Raises ImageError, with `name`, for what cannot be read, is empty or holds NaN or infinite voxels.
    """
    stored = _open(source, name)
    header = _header(stored, name)
    with readable(name, *DAMAGED_TIFF):
        if len(stored) == 1:
            voxels = _upright(stored[0].read(), header)
        else:
            voxels = np.empty((*header.size, len(stored)), header.dtype)
            for channel, file in enumerate(stored):
                voxels[..., channel] = _upright(file.read(), header)[..., 0]
    if voxels.dtype.kind == "f" and not all((np.abs(plane) < INFINITE).all() for plane in voxels):  # NaN is not
        raise ImageError(f"{name}: has voxels that are not numbers (NaN or infinite)")
    return voxels, header


def read_label_volume(source: ImageSource, name: str) -> tuple[np.ndarray, VolumeHeader]:
    """Mask values (D, H, W), uint8 or uint16 or int64, in RAS orientation; and the header.

    Raises DataError, with `name`, for what cannot be read, for more than one channel, fractions and negative numbers.
    """
    stored = _open(source, f"{name}: label")
    header = _header(stored, f"{name}: label")
    if header.channels != 1:
        raise DataError(f"{name}: label has {header.channels} channels, expected one number for each voxel")
    with readable(f"{name}: label", *DAMAGED_TIFF):
        values = _upright(stored[0].read(), header)[..., 0]
    lowest, highest = values.min(), values.max()
    if not lowest >= 0 or not highest < 2**63:  # NaN is neither
        raise DataError(f"{name}: label holds {lowest if not lowest >= 0 else highest:g}, expected 0 and above")
    kind = np.uint8 if highest < 256 else np.uint16 if highest < 65536 else np.int64
    whole = values.astype(kind, copy=False)
    if values.dtype.kind == "f":
        for plane, cast in zip(values, whole, strict=True):
            fractions = plane[plane != cast]
            if fractions.size:
                raise DataError(f"{name}: label holds {fractions[0]:g}, expected whole numbers")
    return whole, header


def same_grid(first: VolumeHeader, second: VolumeHeader) -> bool:
    """Whether the voxels of two volumes of one size lie at the same places: to 1 um, or to 1/100 of smaller voxels."""
    return _distance(first.affine, second.affine) <= _tolerance(first.spacing)


def write_volume(file: BinaryIO, voxels: np.ndarray, like: VolumeFile) -> None:
    """Write (D, H, W) or (C, D, H, W) in RAS orientation as compressed NIfTI with the axes and header of `like`.

    Whole numbers take the smallest type that holds them, others are float32; channels become the last axis. Where
    `like` is no NIfTI, its affine is all that is kept.
    """
    nibabel = load_nibabel()
    (stored,) = _open(like._replace(paths=like.paths[:1]), like.paths[0])
    header = _header([stored], like.paths[0])
    values = np.moveaxis(voxels, 0, -1) if voxels.ndim == 4 else voxels
    values = _as_stored(values.astype(_smallest_type(values), copy=False), header)
    if isinstance(stored, NiftiVolume):
        written = stored.image.header.copy()
        written["cal_min"] = written["cal_max"] = 0  # the window that a viewer shows the image in
        image = type(stored.image)(values, None, written)
    else:
        image = nibabel.Nifti1Image(values, stored.affine)
        image.header.set_xyzt_units("mm")
    image.set_data_dtype(values.dtype)
    image.header.set_slope_inter(1, 0)
    with gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0) as compressed:
        image.to_file_map({"image": nibabel.FileHolder(fileobj=compressed)})


def _open(source: ImageSource, name: str) -> list[StoredVolume]:
    assert isinstance(source, VolumeFile), source
    nibabel = load_nibabel()
    odd_header = nibabel.filebasedimages.ImageFileError, nibabel.spatialimages.HeaderDataError
    with readable(name, *DAMAGED_TIFF, *odd_header):
        return [open_stored(path, source.spacing) for path in source.paths]


def _header(stored: Sequence[StoredVolume], name: str) -> VolumeHeader:
    """Of the files of one volume, one for each channel, which must all have the same grid."""
    first = stored[0]
    if 0 in first.shape or first.channels == 0:
        raise ImageError(f"{name}: is empty, {' x '.join(map(str, first.shape))} voxels")
    for file in stored:
        if file.dtype.kind not in "uif":
            raise ImageError(f"{name}: has voxels of type {file.dtype}, expected one real number for each channel")
    sides, orientation = np.zeros(3), np.full((3, 2), np.nan)
    if (np.abs(first.affine) < FAR).all():  # which NaN is not
        sides = np.linalg.norm(first.affine[:3, :3], axis=0)
        orientation = load_nibabel().io_orientation(first.affine)
    if sides.min() < SMALL or np.isnan(orientation).any():
        raise ImageError(f"{name}: its affine {first.affine[:3].tolist()} is no grid in space; correct the header")
    axes, steps = orientation.T.astype(int)
    to_stored = np.zeros((4, 4))
    to_stored[3, 3] = 1
    for axis, (of_ras, step) in enumerate(zip(axes, steps, strict=True)):
        to_stored[axis, of_ras] = step
        to_stored[axis, 3] = 0 if step == 1 else first.shape[axis] - 1
    affine = first.affine @ to_stored
    depth, height, width = (first.shape[axis] for axis in np.argsort(axes)[::-1])
    z, y, x = sides[np.argsort(axes)[::-1]].tolist()
    kind = np.result_type(*(file.dtype for file in stored)).name
    stored_axes = tuple(zip(axes.tolist(), steps.tolist(), strict=True))
    header = VolumeHeader((depth, height, width), (z, y, x), first.channels, kind, affine, stored_axes)
    for file in stored[1:]:
        alike = file.shape == first.shape and file.channels == first.channels == 1
        if not alike or _distance(file.affine, first.affine) > _tolerance(header.spacing):
            raise ImageError(
                f"{name}: its channels have different shapes or affines; all files of a volume need the same"
            )
    return header if len(stored) == 1 else header._replace(channels=len(stored))


def _tolerance(spacing: Spacing) -> float:
    """How far the entries of two affines, in mm, may be apart for the same grid."""
    return min(1e-3, 1e-2 * min(spacing))


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).max())


def _upright(voxels: np.ndarray, header: VolumeHeader) -> np.ndarray:
    """(x, y, z, C) in the file's axes -> (D, H, W, C) in RAS orientation, a view."""
    axes, steps = zip(*header.stored_axes, strict=True)
    return voxels[tuple(slice(None, None, step) for step in steps)].transpose(*np.argsort(axes)[::-1], 3)


def _as_stored(voxels: np.ndarray, header: VolumeHeader) -> np.ndarray:
    """(D, H, W, ...) in RAS orientation -> (x, y, z, ...) in the file's axes, a view."""
    axes, steps = zip(*header.stored_axes, strict=True)
    turned = voxels.transpose(*(2 - axis for axis in axes), *range(3, voxels.ndim))
    return turned[tuple(slice(None, None, step) for step in steps)]


def _smallest_type(values: np.ndarray) -> str:
    """Of whole numbers, the first of `MASK_TYPES` that holds them; float32 of others."""
    if values.dtype.kind == "f":
        return "float32"
    lowest, highest = int(values.min()), int(values.max())
    return next(kind for kind in MASK_TYPES if np.iinfo(kind).min <= lowest and highest <= np.iinfo(kind).max)
