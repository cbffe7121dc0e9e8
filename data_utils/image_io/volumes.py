"""Volumes as (D, H, W), D along z: read into RAS orientation, whatever axes their files have, and written back."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from data_utils.image_io.class_masks import ClassMask, combine_masks
from data_utils.image_io.dicom.labels import SegmentVolume
from data_utils.image_io.dicom.series import DicomSeries
from data_utils.image_io.dicom.write import Regions, write_segmentation, write_structures
from data_utils.image_io.formats import ClassLayers, ImageSource, VolumeFile, check_finite, image_errors
from data_utils.image_io.stored_volume import Spacing, StoredVolume
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES, NiftiVolume, load_nibabel, open_stored
from data_utils.mask_values import round_numbers
from runtime.errors import DataError, ImageError

GZIP_LEVEL = 6  # the default of `gzip`
SMALLEST_SIDE = 1e-7  # mm: with a smaller side of a voxel a header is damaged
LARGEST_SIDE = 1e4  # mm: with a larger one too
FARTHEST_ENTRY = 1e7  # mm: with an entry of the affine so far from 0 a header is damaged
DOUBLE_SUFFIXES = tuple(suffix for suffix in VOLUME_SUFFIXES if suffix.count(".") > 1)
MASK_TYPES = ("uint8", "int16", "uint16", "int32", "int64")


class VolumeHeader(NamedTuple):
    """What is known of a volume without its voxels.

    Args:
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
    """A file's name without its extension; `.nii.gz` goes as a whole."""
    if name.lower().endswith(DOUBLE_SUFFIXES):
        name = name.rpartition(".")[0]
    return name.rpartition(".")[0] or name


def is_volume(path: str | Path) -> bool:
    """Whether the name ends like that of a file that is always a volume."""
    return str(path).lower().endswith(VOLUME_SUFFIXES)


def read_volume_header(source: ImageSource, name: str) -> VolumeHeader:
    """The header of a volume. Raises ImageError, with `name`, for a file that cannot be read or is no volume."""
    return _header(_open(source, name), name)


def read_volume(source: ImageSource, name: str) -> tuple[np.ndarray, VolumeHeader]:
    """(D, H, W, C) in the files' own value range, in RAS orientation, a view of the file's axes; and the header.

    Raises ImageError, with `name`, for a source that cannot be read, is empty or holds NaN or infinite voxels.
    """
    stored_volumes = _open(source, name)
    header = _header(stored_volumes, name)
    with image_errors(name):
        if len(stored_volumes) == 1:
            voxels = _upright(stored_volumes[0].read(), header)
        else:
            voxels = np.empty((*header.size, len(stored_volumes)), header.dtype)
            for channel, file in enumerate(stored_volumes):
                voxels[..., channel] = _upright(file.read(), header)[..., 0]
    for plane in voxels:
        check_finite(plane, name)
    return voxels, header


def count_label_channels(source: ImageSource, name: str) -> int:
    """Values of each voxel of a label: one of stacks of palette indices. Raises ImageError as `read_volume_header`."""
    return sum(file.label_channels for file in _open(source, name))


def read_label_volume(source: ImageSource, name: str) -> tuple[np.ndarray, VolumeHeader]:
    """Mask values (D, H, W), uint8 or uint16 or int64, in RAS orientation; and the header.

    Where classes may overlap, the values are int64, as `pack_bits` gives them.

    Raises DataError, with `name`, if the label cannot be read, or has several channels, fractions or negative numbers.
    """
    if isinstance(source, VolumeFile) and source.layers is not None:
        return _read_layers(source, source.layers, name)
    stored_volumes = _open(source, f"{name}: label")
    header = _header(stored_volumes, f"{name}: label")
    channels = stored_volumes[0].label_channels
    if channels != 1:
        raise DataError(f"{name}: label has {channels} channels, expected one number for each voxel")
    with image_errors(f"{name}: label"):
        values = _upright(stored_volumes[0].read_labels(), header)[..., 0]
    lowest = np.rint(float(values.min()))
    highest = np.rint(float(values.max()))
    if lowest < 0 or not highest < 2**63:  # or NaN
        extreme = lowest if lowest < 0 else highest
        raise DataError(f"{name}: label holds {extreme:.9g}, expected 0 and above")
    dtype = np.dtype(np.int64) if highest > 65535 else np.min_scalar_type(int(highest))
    if values.dtype.kind != "f":
        return values.astype(dtype, copy=False), header
    whole_numbers = np.empty(values.shape, dtype)
    for plane, whole_plane in zip(values, whole_numbers, strict=True):
        whole_plane[:] = round_numbers(plane, f"{name}: label")
    return whole_numbers, header


def _read_layers(source: VolumeFile, layers: ClassLayers, name: str) -> tuple[np.ndarray, VolumeHeader]:
    """The masks of all classes as one, from a file for each or the channels of one file."""
    masks = [ClassMask(None, bit, name) for bit in layers.unknown]
    plain_source = source._replace(layers=None)
    if len(layers.bits) > 1 and len(source.paths) == 1:
        voxels, header = read_volume(plain_source, f"{name}: label")
        if header.channels != len(layers.bits):
            raise DataError(f"{name}: label has {header.channels} channels, others have {len(layers.bits)}")
        for channel, bit in enumerate(layers.bits):
            location = f"{name}: label channel {channel + 1}"
            masks.append(ClassMask(round_numbers(_flat(voxels[..., channel]), location), bit, location))
    else:
        header = read_volume_header(plain_source._replace(paths=source.paths[:1]), f"{name}: label")
        for path, bit in zip(source.paths, layers.bits, strict=True):
            values, layer_header = read_label_volume(plain_source._replace(paths=(path,)), path)
            if layer_header.size != header.size or not same_grid(layer_header, header):
                raise DataError(f"{path}: has another shape or affine than {source.paths[0]}; resample one of them")
            masks.append(ClassMask(_flat(values), bit, path))
    return combine_masks(masks, layers.ignored).reshape(header.size), header


def _flat(volume: np.ndarray) -> np.ndarray:
    """(D, H, W) -> (D x H, W)."""
    return volume.reshape(-1, volume.shape[-1])


def check_grids(name: str, image: VolumeHeader, label: VolumeHeader) -> None:
    """Raises DataError, with `name`, if the voxels of a volume and its label do not lie at the same places."""
    if image.size != label.size:
        image_size = " x ".join(map(str, image.size))
        label_size = " x ".join(map(str, label.size))
        raise DataError(
            f"{name}: image is {image_size}, its label {label_size} (depth x height x width); save the label on the"
            " grid of the image, in 3D Slicer with it as reference volume"
        )
    if not same_grid(image, label):
        difference = f"the affines of image and label differ by up to {_distance(image.affine, label.affine):.3g} mm"
        raise DataError(f"{name}: {difference}; resample one to the other's grid")


def same_grid(first: VolumeHeader, second: VolumeHeader) -> bool:
    """Whether the voxels of two volumes of one size lie at one place: to 2.5 um, or to 1/100 of smaller voxels."""
    return _distance(first.affine, second.affine) <= _tolerance(first.spacing)


def write_volume(file: BinaryIO, voxels: np.ndarray, like: VolumeFile) -> None:
    """Write (D, H, W) or (C, D, H, W) in RAS orientation as compressed NIfTI with the axes and header of `like`.

    Whole numbers take the smallest type that holds them, others are float32; channels become the last axis. Where
    `like` is no NIfTI, its affine is all that is kept.
    """
    nibabel = load_nibabel()
    stored_volume = _open(like, like.paths[0])[0]
    header = _header([stored_volume], like.paths[0])
    values = np.moveaxis(voxels, 0, -1) if voxels.ndim == 4 else voxels
    values = _as_stored(values.astype(_smallest_type(values), copy=False), header)
    if isinstance(stored_volume, NiftiVolume):
        nifti_header = stored_volume.image.header.copy()
        # the window that a viewer shows the image in
        nifti_header["cal_min"] = nifti_header["cal_max"] = 0
        image = type(stored_volume.image)(values, None, nifti_header)
    else:
        image = nibabel.Nifti1Image(values, stored_volume.affine)
        image.header.set_xyzt_units("mm")
    image.set_data_dtype(values.dtype)
    image.header.set_slope_inter(1, 0)
    with gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0) as compressed:
        image.to_file_map({"image": nibabel.FileHolder(fileobj=compressed)})


def write_regions(file: BinaryIO, regions: Regions, like: VolumeFile, *, as_contours: bool = False) -> None:
    """Write regions (D, H, W) in RAS orientation as a SEG of the DICOM series `like`, or as contours in a RTSTRUCT.

    Raises ImageError for a series whose headers lack what a label must name.
    """
    (series,) = _open(like, like.paths[0])
    assert isinstance(series, DicomSeries)
    labels = _as_stored(regions.labels, _header([series], like.paths[0]))
    write = write_structures if as_contours else write_segmentation
    write(file, regions._replace(labels=labels.swapaxes(0, 2)), series)


def _open(source: ImageSource, name: str) -> list[StoredVolume]:
    """The files of a volume, whose headers are read now."""
    assert isinstance(source, VolumeFile), source
    with image_errors(name):
        if source.is_series:
            return [DicomSeries(source.paths)]
        if source.segments is not None:
            assert source.grid_of is not None
            return [SegmentVolume(source.paths, source.segments, _open(source.grid_of, name)[0])]
        files = [open_stored(path, source.spacing) for path in source.paths]
        for file in files:
            if source.grid_of is not None and isinstance(file, NiftiVolume) and not file.has_place:
                _lay_on(file, _open(source.grid_of, name)[0])
        return files


def _lay_on(label: NiftiVolume, image: StoredVolume) -> None:
    """Lay a label without a place on the voxels of an image of its shape, unless its voxels have other sides."""
    sides = label.image.header.get_zooms()[:3]
    image_sides = np.linalg.norm(image.affine[:3, :3], axis=0)
    if label.shape == image.shape and (np.allclose(sides, 1) or np.allclose(sides, image_sides, rtol=1e-3)):
        label.affine = image.affine


def _header(stored_volumes: Sequence[StoredVolume], name: str) -> VolumeHeader:
    """The header of the files of one volume, one for each channel, which must all have the same grid."""
    first = stored_volumes[0]
    if 0 in first.shape or first.channels == 0:
        raise ImageError(f"{name}: is empty, {' x '.join(map(str, first.shape))} voxels")
    for file in stored_volumes:
        if file.dtype.kind not in "uif":
            raise ImageError(f"{name}: has voxels of type {file.dtype}, expected one real number for each channel")
    sides, orientation = _sides_and_orientation(first.affine, name)
    order = np.argsort(orientation[:, 0])[::-1]  # the file's axes along z, y and x
    depth, height, width = np.array(first.shape)[order].tolist()
    z, y, x = sides[order].tolist()
    header = VolumeHeader(
        size=(depth, height, width),
        spacing=(z, y, x),
        channels=sum(file.channels for file in stored_volumes),
        dtype=np.result_type(*[file.dtype for file in stored_volumes]).name,
        affine=first.affine @ load_nibabel().orientations.inv_ornt_aff(orientation, first.shape),
        stored_axes=tuple(map(tuple, orientation.tolist())),
    )
    for file in stored_volumes[1:]:
        is_alike = file.shape == first.shape and file.channels == first.channels == 1
        if not is_alike or _distance(file.affine, first.affine) > _tolerance(header.spacing):
            raise ImageError(
                f"{name}: its channels have different shapes or affines; all files of a volume need the same"
            )
    return header


def _sides_and_orientation(affine: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(3,) sides of a voxel in mm, and (3, 2) `stored_axes`. Raises ImageError, with `name`, for an invalid grid."""
    sides = np.zeros(3)
    orientation = np.full((3, 2), np.nan)
    if (np.abs(affine) < FARTHEST_ENTRY).all():  # NaN is not below it either
        sides = np.linalg.norm(affine[:3, :3], axis=0)
        orientation = load_nibabel().io_orientation(affine)
    has_sides = SMALLEST_SIDE <= sides.min() <= sides.max() <= LARGEST_SIDE
    if not has_sides or np.isnan(orientation).any():
        limits = f"of voxels of {SMALLEST_SIDE:g} to {LARGEST_SIDE:g} mm"
        raise ImageError(f"{name}: its affine {affine[:3].tolist()} is no grid in space {limits}; correct the header")
    return sides, orientation.astype(int)


def _tolerance(spacing: Spacing) -> float:
    """How far the entries of two affines, in mm, may be apart for the same grid."""
    return min(2.5e-3, 1e-2 * min(spacing))  # programs round places to a micrometer or two


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).max())


def _upright(voxels: np.ndarray, header: VolumeHeader) -> np.ndarray:
    """(x, y, z, C) in the file's axes -> (D, H, W, C) in RAS orientation, a view."""
    orientation = np.array(header.stored_axes)
    return load_nibabel().apply_orientation(voxels, orientation).transpose(2, 1, 0, 3)


def _as_stored(voxels: np.ndarray, header: VolumeHeader) -> np.ndarray:
    """(D, H, W, ...) in RAS orientation -> (x, y, z, ...) in the file's axes, a view."""
    orientations = load_nibabel().orientations
    to_stored = orientations.ornt_transform(orientations.axcodes2ornt("RAS"), np.array(header.stored_axes))
    return orientations.apply_orientation(np.swapaxes(voxels, 0, 2), to_stored)


def _smallest_type(values: np.ndarray) -> str:
    """The first of `MASK_TYPES` that holds the values, if they are whole numbers; float32 for others."""
    if values.dtype.kind == "f":
        return "float32"
    lowest = int(values.min())
    highest = int(values.max())
    return next(kind for kind in MASK_TYPES if np.iinfo(kind).min <= lowest and highest <= np.iinfo(kind).max)
