"""The inspection of volumes: image and label are read once for all that is asked of them."""

import zlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from data_utils.analysis.inspection import ClassLocations, Inspection, Problem, SplitInspection
from data_utils.analysis.problems import value_count_problem
from data_utils.analysis.volume_statistics import VolumeStatistics
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volume_formats import Spacing
from data_utils.image_io.volumes import (
    VolumeHeader,
    read_label_volume,
    read_volume,
    read_volume_header,
    same_grid,
    volume_size_mismatch,
)
from data_utils.mask_values import count_values
from data_utils.sources.records import LabelSet, Record
from runtime.cache import JSON
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, MaskValue

UNLABELED = (0, IGNORE_INDEX)
LOCATIONS = 1000  # voxels of each value that are remembered, for patches around them
FOREGROUND = 10_000  # labeled voxels that are sampled from a volume for the statistics of CT


@dataclass(frozen=True)
class VolumeInspection(Inspection):
    """What one look at a volume finds: sizes are (D, H, W), and there are some voxels of each class.

    Args:
        spacing: (z, y, x) in mm.
        foreground: values of some labeled voxels, (n, C) float32.
    """

    spacing: Spacing = field(kw_only=True)
    foreground: np.ndarray = field(kw_only=True)


@dataclass
class VolumeSplitInspection(SplitInspection):
    """What one look at each volume of a split finds: sizes are (N, 3), and there are spacings and intensities."""

    axes = "depth x height x width"
    dims = 3

    _spacings: dict[int, Spacing] = field(default_factory=dict)
    _foregrounds: dict[int, np.ndarray] = field(default_factory=dict)
    stored_statistics: VolumeStatistics | None = None  # those of an earlier run

    @property
    def statistics(self) -> VolumeStatistics:
        """Spacings and intensities, which only volumes have."""
        if self.stored_statistics is not None:
            return self.stored_statistics
        spacings = np.zeros((len(self.sizes), 3))
        for i, spacing in self._spacings.items():
            spacings[i] = spacing
        return VolumeStatistics.from_volumes(spacings, list(self._foregrounds.values()))

    def add(  # type: ignore[override]  # it takes volumes only
        self, i: int, inspection: VolumeInspection, labeled_for: LabelSet | None = None
    ) -> None:
        super().add(i, inspection, labeled_for)
        self._spacings[i] = inspection.spacing
        self._foregrounds[i] = inspection.foreground

    def spacings(self) -> list[tuple[float, ...]]:
        return [tuple(spacing) for spacing in self.statistics.spacings.tolist() if any(spacing)]

    def to_json(self) -> JSON:
        return super().to_json() | {"volumes": self.statistics.to_json()}

    @classmethod
    def from_json(cls, value: JSON) -> "VolumeSplitInspection":
        inspection = super().from_json(value)
        inspection.stored_statistics = VolumeStatistics.from_json(value["volumes"])
        return inspection


def inspect_volume(record: Record, *, has_classes: bool = True) -> VolumeInspection | Problem:
    """The inspection of image and label: whether they fit, where each value lies, intensities at some voxels."""
    name = record["name"]
    image = record["image"]
    label = record["target"]
    assert isinstance(image, VolumeFile)
    assert isinstance(label, VolumeFile)
    try:
        header = read_volume_header(image, name)
    except DataError as error:
        return Problem("image cannot be read", str(error))
    try:
        label_header = read_volume_header(label._replace(paths=label.paths[:1]), f"{name}: label")
    except DataError as error:
        return Problem("label cannot be read", str(error))
    problem = _mismatch(name, header, label_header)  # before any voxel is read
    if problem:
        return problem
    try:
        voxels, _ = read_volume(image, name)
    except DataError as error:
        return Problem("image cannot be read", str(error))
    try:
        values, _ = read_label_volume(label, name)
    except DataError as error:
        return Problem("label cannot be read", str(error))
    plane_counts = [count_values(plane) for plane in values]
    pixels: Counter[MaskValue] = Counter()
    for counts in plane_counts:
        pixels.update(counts)
    problem = value_count_problem(pixels, name) if has_classes else None
    if problem:
        return problem
    rng = np.random.default_rng(zlib.crc32(repr((name, header.size)).encode()))  # the same on every start
    locations: ClassLocations = {}
    for value in sorted(pixels):
        locations[value] = _sample_voxels(values, value, plane_counts, LOCATIONS, rng)
    z, y, x = _sample_voxels(values, None, plane_counts, FOREGROUND, rng).T
    foreground = voxels[z, y, x].astype(np.float32)
    return VolumeInspection(
        size=header.size,
        mask_size=label_header.size,
        mode=header.dtype,
        kind="numbers",
        pixels=dict(pixels),
        class_locations=locations,
        spacing=header.spacing,
        foreground=foreground,
    )


def _mismatch(name: str, image: VolumeHeader, label: VolumeHeader) -> Problem | None:
    """The problem if the voxels of a volume and its label do not lie at the same places; else None."""
    if image.size != label.size:
        return Problem("label of another shape", volume_size_mismatch(name, image, label))
    if same_grid(image, label):
        return None
    distance = np.abs(image.affine - label.affine).max()
    return Problem(
        "label of another affine",
        f"{name}: the affines of image and label differ by up to {distance:.3g} mm; resample one to the other's grid",
    )


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
