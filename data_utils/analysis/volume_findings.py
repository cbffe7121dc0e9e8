"""What inspection finds in volumes only: spacings, and the statistics for their normalisation."""

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

PERCENTILES = 0.5, 99.5  # of labelled voxels, which CT is clipped to (nnU-Net's)
ANISOTROPIC = 3  # times the finest spacing is coarse
COARSE_PERCENTILE = 10  # of the spacings along a coarse axis, lest most volumes lose slices (nnU-Net's)


class Foreground(NamedTuple):
    """Of labelled voxels of a split: the `PERCENTILES` of all channels, mean and standard deviation of each."""

    clip: tuple[float, float]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass
class VolumeFindings:
    """Of the volumes of a split.

    Args:
        spacings: (N, 3) float64, (z, y, x) in mm, zeros where a record cannot be used.
        channels: how many usable records have one channel, two, ...
        foreground: None where no voxel is labelled, or not all volumes have as many channels.
    """

    spacings: np.ndarray
    channels: dict[int, int]
    foreground: Foreground | None

    @classmethod
    def of(cls, spacings: np.ndarray, values: Sequence[np.ndarray]) -> "VolumeFindings":
        """The findings of `spacings` (N, 3), and of `values` (n, C) of labelled voxels of each usable record."""
        foreground = None
        if len({part.shape[1] for part in values}) == 1 and any(map(len, values)):
            every = np.concatenate(values)
            lowest, highest = np.percentile(every, PERCENTILES).tolist()
            mean, std = every.mean(axis=0, dtype=np.float64), every.std(axis=0, dtype=np.float64)
            foreground = Foreground((lowest, highest), tuple(mean.tolist()), tuple(np.where(std > 0, std, 1).tolist()))
        return cls(spacings, Counter(part.shape[1] for part in values), foreground)

    def to_json(self) -> JSON:
        channels = list(self.channels.items())
        return {"spacings": self.spacings.tolist(), "channels": channels, "foreground": self.foreground}

    @classmethod
    def from_json(cls, value: JSON) -> "VolumeFindings":
        foreground = value["foreground"] and Foreground(*map(tuple, value["foreground"]))
        return cls(np.array(value["spacings"]).reshape(-1, 3), dict(value["channels"]), foreground)

    def usable_spacings(self) -> np.ndarray:
        """(N, 3) spacings; where there is none, the median of the others."""
        good = np.asarray(self.spacings.any(axis=1))
        return np.where(good[:, None], self.spacings, np.median(self.spacings[good], axis=0))

    def normalization(self, modality: str | None, config: DataConfig) -> Normalization:
        """The normalisation of --normalization; by default CT is clipped, other volumes are standardised one by one."""
        channels = max(self.channels, key=lambda count: self.channels[count])
        if len(self.channels) > 1 and not config.skipped_errors:
            found = " and ".join(map(str, sorted(self.channels)))
            raise DataError(f"volumes have {found} channels; --check-data lists them")
        kind = config.normalization or ("ct" if (modality or "").upper() == "CT" else "z-score")
        if kind == "z-score":
            return Normalization((0.0,) * channels, (1.0,) * channels, (), standardize=True)
        if self.foreground is None:
            raise DataError(
                "--normalization ct is measured on labelled voxels, but there are none; use --normalization z-score"
            )
        clip = self.foreground.clip
        return Normalization(self.foreground.mean, self.foreground.std, (), clip if clip[0] < clip[1] else None)


def target_spacing(spacings: np.ndarray) -> Spacing:
    """The spacing (z, y, x) in mm that volumes of `spacings` (N, 3) are resampled to: the median along each axis.

    Along an axis that is coarse in most of them it is finer, but no finer than along the others.
    """
    target = np.median(spacings, axis=0)
    coarsest = int(target.argmax())
    if target[coarsest] > ANISOTROPIC * target.min():
        finer = np.percentile(spacings[:, coarsest], COARSE_PERCENTILE)
        target[coarsest] = max(finer, np.delete(target, coarsest).max())
    z, y, x = (float(f"{side:.6g}") for side in target)  # affines hold more digits than they know
    return z, y, x
