"""The statistics of volumes, which no image has: their spacings, and intensities for their normalization."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data_utils.analysis.normalization import Normalization
from data_utils.config import DataConfig
from data_utils.image_io.volume_formats import Spacing
from runtime.cache import JSON
from runtime.errors import DataError

PERCENTILES = (0.5, 99.5)  # the values of labeled voxels that CT is clipped to (nnU-Net's)
ANISOTROPIC = 3  # times the finest spacing: from there on a spacing is coarse
COARSE_PERCENTILE = 10  # the spacing to choose along a coarse axis, lest most volumes lose slices (nnU-Net's)


class Foreground(NamedTuple):
    """Statistics of labeled voxels of a split: the `PERCENTILES` of all channels, mean and deviation of each."""

    clip: tuple[float, float]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass
class VolumeStatistics:
    """The statistics of the volumes of a split.

    Args:
        spacings: (N, 3) float64, (z, y, x) in mm, zeros where a record cannot be used.
        channels: how many usable records have one channel, two, ...
        foreground: None if no voxel is labeled, or not all volumes have as many channels.
    """

    spacings: np.ndarray
    channels: dict[int, int]
    foreground: Foreground | None

    @classmethod
    def from_volumes(cls, spacings: np.ndarray, values: Sequence[np.ndarray]) -> "VolumeStatistics":
        """The statistics of `spacings` (N, 3), and of `values` (n, C) of labeled voxels of each usable record."""
        channels = Counter(record_values.shape[1] for record_values in values)
        foreground = None
        if len(channels) == 1 and any(map(len, values)):
            voxels = np.concatenate(values)
            lowest, highest = np.percentile(voxels, PERCENTILES).tolist()
            mean = voxels.mean(axis=0, dtype=np.float64)
            std = voxels.std(axis=0, dtype=np.float64)
            std = np.where(std > 0, std, 1)
            foreground = Foreground((lowest, highest), tuple(mean.tolist()), tuple(std.tolist()))
        return cls(spacings, channels, foreground)

    def to_json(self) -> JSON:
        channels = list(self.channels.items())
        return {"spacings": self.spacings.tolist(), "channels": channels, "foreground": self.foreground}

    @classmethod
    def from_json(cls, value: JSON) -> "VolumeStatistics":
        spacings = np.array(value["spacings"]).reshape(-1, 3)
        foreground = None
        if value["foreground"]:
            clip, mean, std = map(tuple, value["foreground"])
            foreground = Foreground(clip, mean, std)
        return cls(spacings, dict(value["channels"]), foreground)

    def usable_spacings(self) -> np.ndarray:
        """(N, 3) spacings; a record without a spacing gets the median of the others."""
        is_known = np.asarray(self.spacings.any(axis=1))
        return np.where(is_known[:, None], self.spacings, np.median(self.spacings[is_known], axis=0))

    def normalization(self, modality: str | None, config: DataConfig) -> Normalization:
        """The normalization of --normalization; by default CT is clipped, other volumes are standardized one by one."""
        channels = max(self.channels, key=lambda count: self.channels[count])
        if len(self.channels) > 1 and not config.skipped_errors:
            counts = " and ".join(map(str, sorted(self.channels)))
            raise DataError(f"volumes have {counts} channels; --check-data lists them")
        kind = config.normalization
        if not kind:
            is_ct = (modality or "").upper() == "CT"
            kind = "ct" if is_ct else "z-score"
        if kind == "z-score":
            return Normalization((0.0,) * channels, (1.0,) * channels, (), standardize=True)
        if self.foreground is None:
            raise DataError(
                "--normalization ct is measured on labeled voxels, but there are none; use --normalization z-score"
            )
        lowest, highest = self.foreground.clip
        clip = (lowest, highest) if lowest < highest else None
        return Normalization(self.foreground.mean, self.foreground.std, (), clip)


def target_spacing(spacings: np.ndarray) -> Spacing:
    """The spacing (z, y, x) in mm to which volumes of `spacings` (N, 3) are resampled: the median along each axis.

    Along an axis that is coarse in most volumes, the spacing is finer than the median, but not finer than along the
    other axes.
    """
    target = np.median(spacings, axis=0)
    coarsest = int(target.argmax())
    if target[coarsest] > ANISOTROPIC * target.min():
        finer = np.percentile(spacings[:, coarsest], COARSE_PERCENTILE)
        target[coarsest] = max(finer, np.delete(target, coarsest).max())
    z, y, x = (float(f"{side:.6g}") for side in target)  # affines hold more digits than are significant
    return z, y, x
