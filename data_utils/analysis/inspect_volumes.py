"""As `inspect`, for volumes: image and label are read once for all findings."""

import zlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from data_utils.analysis.inspect import (
    ClassLocations,
    Inspection,
    Problem,
    SplitInspection,
    count_values,
    too_many,
)
from data_utils.analysis.volume_findings import VolumeFindings
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.volume_formats import Spacing
from data_utils.image_io.volumes import read_label_volume, read_volume, same_grid
from data_utils.sources.records import Record
from runtime.cache import JSON
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, MaskValue

UNLABELLED = (0, IGNORE_INDEX)
LOCATIONS = 1000  # voxels of each value that are remembered, for patches around them
FOREGROUND = 10_000  # values of labelled voxels of a volume that CT's statistics are made of


@dataclass(frozen=True)
class VolumeInspection(Inspection):
    """What one look at a volume finds, of sizes (D, H, W), with some voxels of each class.

    Args:
        spacing: (z, y, x) in mm.
        foreground: values of some labelled voxels, (n, C) float32.
    """

    spacing: Spacing = (1.0, 1.0, 1.0)
    foreground: np.ndarray = field(default_factory=lambda: np.empty((0, 1), np.float32))


@dataclass
class VolumeSplitInspection(SplitInspection):
    """As `SplitInspection`, with sizes (N, 3), and what else is known of volumes."""

    axes = "depth x height x width"
    dims = 3

    _spacings: dict[int, Spacing] = field(default_factory=dict)
    _foregrounds: dict[int, np.ndarray] = field(default_factory=dict)
    stored: VolumeFindings | None = None  # by an earlier run

    @property
    def volumes(self) -> VolumeFindings:
        """What else is known."""
        if self.stored is not None:
            return self.stored
        spacings = np.zeros((len(self.sizes), 3))
        for i, spacing in self._spacings.items():
            spacings[i] = spacing
        return VolumeFindings.of(spacings, list(self._foregrounds.values()))

    def add(self, i: int, found: VolumeInspection) -> None:  # type: ignore[override]  # of volumes only
        super().add(i, found)
        self._spacings[i], self._foregrounds[i] = found.spacing, found.foreground

    def spacings(self) -> list[tuple[float, ...]]:
        return [tuple(spacing) for spacing in self.volumes.spacings.tolist() if any(spacing)]

    def to_json(self) -> JSON:
        return super().to_json() | {"volumes": self.volumes.to_json()}

    @classmethod
    def from_json(cls, value: JSON) -> "VolumeSplitInspection":
        inspection = super().from_json(value)
        inspection.stored = VolumeFindings.from_json(value["volumes"])
        return inspection


def inspect_volume(record: Record, *, has_classes: bool = True) -> VolumeInspection | Problem:
    """All of image and label: whether they fit, values of the label and some places of each, values at some."""
    name, image, label = record["name"], record["image"], record["target"]
    assert isinstance(image, VolumeFile) and isinstance(label, VolumeFile)
    try:
        voxels, header = read_volume(image, name)
    except DataError as error:
        return Problem("image cannot be read", str(error))
    try:
        values, of_label = read_label_volume(label, name)
    except DataError as error:
        return Problem("label cannot be read", str(error))
    if header.size != of_label.size:
        sizes = (" x ".join(map(str, size)) for size in (header.size, of_label.size))
        text = "{}: image is {}, its label {} (depth x height x width)".format(name, *sizes)
        return Problem("label of another shape", text)
    if not same_grid(header, of_label):
        away = np.abs(header.affine - of_label.affine).max()
        text = f"{name}: the affines of image and label differ by up to {away:.3g} mm; resample one to the other's grid"
        return Problem("label of another affine", text)
    counts = [count_values(plane) for plane in values]
    pixels: Counter[MaskValue] = Counter()
    for found in counts:
        pixels.update(found)
    problem = too_many(pixels, name) if has_classes else None
    if problem:
        return problem
    rng = np.random.default_rng(zlib.crc32(repr((name, header.size)).encode()))  # the same on every start
    locations: ClassLocations = {value: _some(values, value, counts, LOCATIONS, rng) for value in sorted(pixels)}
    z, y, x = _some(values, None, counts, FOREGROUND, rng).T
    foreground = voxels[z, y, x].astype(np.float32)
    return VolumeInspection(
        size=header.size,
        mask_size=of_label.size,
        mode=header.dtype,
        kind="numbers",
        pixels=dict(pixels),
        class_locations=locations,
        spacing=header.spacing,
        foreground=foreground,
    )


def _some(
    values: np.ndarray,
    wanted: MaskValue | None,
    counts: list[dict[MaskValue, int]],
    most: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """(n, 3) of at most `most` voxels of a label (D, H, W) that hold `wanted`, or None: a class but the
    first, 0, and not the usual ignored value, 255.

    `counts` are those of its slices, so that only slices with chosen voxels are searched, one at a time.
    """

    def count(of_plane: dict[MaskValue, int]) -> int:
        if wanted is not None:
            return of_plane.get(wanted, 0)
        return sum(n for value, n in of_plane.items() if value not in UNLABELLED)

    ends = np.cumsum([0, *map(count, counts)])
    chosen = np.sort(rng.choice(ends[-1], min(most, ends[-1]), replace=False, shuffle=False))
    parts = [np.empty((0, 3), np.int64)]
    for z in np.unique(np.searchsorted(ends, chosen, side="right") - 1).tolist():
        ranks = chosen[(chosen >= ends[z]) & (chosen < ends[z + 1])] - ends[z]
        there = np.flatnonzero(values[z] == wanted if wanted is not None else ~np.isin(values[z], UNLABELLED))[ranks]
        y, x = divmod(there, values.shape[2])
        parts.append(np.stack([np.full_like(y, z), y, x], axis=1))
    return np.concatenate(parts)
