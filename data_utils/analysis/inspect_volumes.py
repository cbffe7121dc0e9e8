"""The inspection of volumes: image and label, or points, are read once for all that is asked of them."""

import zlib
from collections import Counter

import numpy as np

from data_utils.analysis.inspection import (
    ClassLocations,
    Inspection,
    Problem,
    UnusableRecord,
    point_locations,
    problem_of_kind,
)
from data_utils.analysis.problems import check_values
from data_utils.image_io.formats import PointSource, VolumeFile
from data_utils.image_io.volumes import (
    VolumeHeader,
    read_label_volume,
    read_volume,
    read_volume_header,
    same_grid,
    volume_size_mismatch,
)
from data_utils.mask_values import count_values
from data_utils.sources.points.spaces import to_voxels
from data_utils.sources.records import Record
from unet.config import IGNORE_INDEX, MaskValue

UNLABELED = (0, IGNORE_INDEX)
LOCATIONS = 1000  # voxels of each value that are remembered, for patches around them
FOREGROUND = 10_000  # labeled voxels that are sampled from a volume for the statistics of CT


def generator(name: str, size: tuple[int, ...]) -> np.random.Generator:
    """What draws voxels of a volume of this name and size: the same on every start."""
    return np.random.default_rng(zlib.crc32(repr((name, size)).encode()))


def inspect_volume(record: Record, has_classes: bool = True) -> Inspection:
    """The inspection of image and label: whether they fit, where each value lies, intensities at some voxels."""
    name = record["name"]
    image = record["image"]
    label = record["target"]
    assert isinstance(image, VolumeFile)
    assert isinstance(label, VolumeFile)
    with problem_of_kind("image cannot be read"):
        header = read_volume_header(image, name)
    with problem_of_kind("label cannot be read"):
        label_header = read_volume_header(label._replace(paths=label.paths[:1]), f"{name}: label")
    _check_grids(name, header, label_header)  # before any voxel is read
    with problem_of_kind("image cannot be read"):
        voxels, _ = read_volume(image, name)
    with problem_of_kind("label cannot be read"):
        values, _ = read_label_volume(label, name)
    plane_counts = [count_values(plane) for plane in values]
    pixels: Counter[MaskValue] = Counter()
    for counts in plane_counts:
        pixels.update(counts)
    if has_classes:
        check_values(name, pixels)
    rng = generator(name, header.size)
    locations: ClassLocations = {}
    for value in sorted(pixels):
        locations[value] = _sample_voxels(values, value, plane_counts, LOCATIONS, rng)
    z, y, x = _sample_voxels(values, None, plane_counts, FOREGROUND, rng).T
    foreground = voxels[z, y, x].astype(np.float32)
    sizes = (header.size, label_header.size)
    channels = foreground.shape[1]
    return Inspection(*sizes, header.dtype, "numbers", dict(pixels), locations, channels, header.spacing, foreground)


def inspect_volume_points(record: Record) -> Inspection:
    """The inspection of a volume, with the voxels of its points; intensities are sampled from the whole volume."""
    name = record["name"]
    source = record["target"]
    assert isinstance(source, PointSource)
    with problem_of_kind("image cannot be read"):
        voxels, header = read_volume(record["image"], name)
    rng = generator(name, header.size)
    z, y, x = (rng.integers(side, size=FOREGROUND) for side in header.size)
    return Inspection(
        header.size,
        header.size,
        header.dtype,
        "numbers",
        {},
        point_locations(to_voxels(source.positions, source.space, header), source, header.size),
        voxels.shape[-1],
        header.spacing,
        voxels[z, y, x].astype(np.float32),
    )


def _check_grids(name: str, image: VolumeHeader, label: VolumeHeader) -> None:
    """Raises UnusableRecord if the voxels of a volume and its label do not lie at the same places."""
    if image.size != label.size:
        raise UnusableRecord(Problem("label of another shape", volume_size_mismatch(name, image, label)))
    if not same_grid(image, label):
        distance = np.abs(image.affine - label.affine).max()
        text = f"{name}: the affines of image and label differ by up to {distance:.3g} mm"
        raise UnusableRecord(Problem("label of another affine", f"{text}; resample one to the other's grid"))


def _sample_voxels(
    values: np.ndarray,
    value: MaskValue | None,
    plane_counts: list[dict[MaskValue, int]],
    most: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """A sample (n, 3) of at most `most` voxels of a label (D, H, W) that hold `value`.

    If `value` is None, the voxels hold any class except the first, 0, and the usual ignored value, 255. `plane_counts`
    counts the values of each slice, so that only slices with chosen voxels are searched, one at a time.
    """
    totals = [0]
    for counts in plane_counts:
        totals.append(_count_labeled(counts) if value is None else counts.get(value, 0))
    ends = np.cumsum(totals)
    # the voxels with the value are numbered through all slices
    random_ranks = np.sort(rng.choice(ends[-1], min(most, ends[-1]), replace=False, shuffle=False))
    parts = [np.empty((0, 3), np.int64)]
    for z in np.unique(np.searchsorted(ends, random_ranks, side="right") - 1).tolist():
        ranks = random_ranks[(random_ranks >= ends[z]) & (random_ranks < ends[z + 1])] - ends[z]
        has_value = ~np.isin(values[z], UNLABELED) if value is None else values[z] == value
        pixels = np.flatnonzero(has_value)[ranks]
        y, x = divmod(pixels, values.shape[2])
        parts.append(np.stack([np.full_like(y, z), y, x], axis=1))
    return np.concatenate(parts)


def _count_labeled(counts: dict[MaskValue, int]) -> int:
    """How many voxels of a slice with these counts have a label."""
    return sum(count for value, count in counts.items() if value not in UNLABELED)
