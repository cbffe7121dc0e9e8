"""The statistics of volumes, which no image has: their spacings, and intensities for their normalization."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from data_utils.analysis.inspection import Foreground, SplitInspection
from data_utils.analysis.normalization import Normalization
from data_utils.config import DataConfig
from data_utils.image_io.volume_formats import Spacing
from runtime.errors import DataError

PERCENTILES = (0.5, 99.5)  # the values of labeled voxels that CT is clipped to (nnU-Net's)
ANISOTROPIC = 3  # times the finest spacing: from there on a spacing is coarse
COARSE_PERCENTILE = 10  # the spacing to choose along a coarse axis, lest most volumes lose slices (nnU-Net's)


def measure_foreground(values: Sequence[np.ndarray]) -> Foreground | None:
    """The statistics of the `values` (n, C) of labeled voxels of each volume.

    None if no voxel is labeled, or not all volumes have as many channels.
    """
    if len({volume_values.shape[1] for volume_values in values}) != 1 or not any(map(len, values)):
        return None
    voxels = np.concatenate(values)
    lowest, highest = np.percentile(voxels, PERCENTILES).tolist()
    mean = voxels.mean(axis=0, dtype=np.float64)
    std = voxels.std(axis=0, dtype=np.float64)
    return Foreground((lowest, highest), tuple(mean.tolist()), tuple(np.where(std > 0, std, 1).tolist()))


def usable_spacings(spacings: np.ndarray) -> np.ndarray:
    """(N, 3) spacings; a volume without a spacing gets the median of the others."""
    is_known = np.asarray(spacings.any(axis=1))
    return np.where(is_known[:, None], spacings, np.median(spacings[is_known], axis=0))


def volume_normalization(inspection: SplitInspection, modality: str | None, config: DataConfig) -> Normalization:
    """The normalization of --normalization; by default CT is clipped, other volumes are standardized one by one."""
    volumes_by_channels = Counter(inspection.channels[inspection.channels > 0].tolist())
    channels = max(volumes_by_channels, key=volumes_by_channels.__getitem__)
    if len(volumes_by_channels) > 1 and not config.skipped_errors:
        counts = " and ".join(map(str, sorted(volumes_by_channels)))
        raise DataError(f"volumes have {counts} channels; --check-data lists them")
    is_ct = (modality or "").upper() == "CT"
    kind = config.normalization or ("ct" if is_ct else "z-score")
    if kind == "z-score":
        return Normalization((0.0,) * channels, (1.0,) * channels, (), standardize=True)
    if inspection.foreground is None:
        raise DataError(
            "--normalization ct is measured on labeled voxels, but there are none; use --normalization z-score"
        )
    (lowest, highest), mean, std = inspection.foreground
    return Normalization(mean, std, (), (lowest, highest) if lowest < highest else None)


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
    # affines hold more digits than are significant
    z, y, x = (float(f"{side:.6g}") for side in target)
    return z, y, x
