"""How images and volumes are normalized, and the spacing of volumes: from measurements on the training split."""

import math
from collections import Counter
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import Box, ImageSource
from data_utils.image_io.reader import open_source, read_image
from data_utils.image_io.volume_formats import Spacing
from data_utils.sources.records import Records
from runtime.cache import digest, load_or_compute
from runtime.console import track
from runtime.errors import DataError

STATISTICS_IMAGES = 128  # enough for mean and standard deviation to settle
SAMPLES = 4  # a large image is measured on so many windows down and across
SIDE = 512  # pixels of a side of such a window
PERCENTILES = (0.5, 99.5)  # the values of labeled voxels that CT is clipped to (nnU-Net's)
ANISOTROPIC = 3  # times the finest spacing: from there on a spacing is coarse
USUAL = (0.1, 99.9)  # percentiles of an image: what lies between them are its usual values
FAR = 4  # times the range of usual values: no value counts as further out
SAMPLED_PIXELS = 2**16  # of an image or a window, for its percentiles
LEAST_VARIATION = 1e-7  # of the mean: what float32 can hold; a smaller deviation is rounding of the sums
COARSE_PERCENTILE = 10  # the spacing to choose along a coarse axis, lest most volumes lose slices (nnU-Net's)


class Sums(NamedTuple):
    """The sums over the pixels of an image.

    Args:
        pixels: how many there are; of a raster (C,), how many hold data in each channel.
        values: (C,) float64, the sum of each channel, its outliers cut.
        squares: (C,) float64, the sum of its squares.
        pixel_type: NumPy's name of the type of the image.
    """

    pixels: int | np.ndarray
    values: np.ndarray
    squares: np.ndarray
    pixel_type: str


class Normalization(NamedTuple):
    """How images are normalized.

    Args:
        mean, std: one number for each channel, in the files' own value range.
        pixel_types: NumPy's names of the types of the images.
        clip: the range that volumes are clipped to first.
        standardize: whether volumes are standardized one by one (see `Preprocess`).
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    pixel_types: tuple[str, ...]
    clip: tuple[float, float] | None = None
    standardize: bool = False


def measure_normalization(records: Records, config: DataConfig, bad: Container[int]) -> Normalization:
    """The normalization, from a sample of the readable images drawn by the seed; cached until a file changes.

    `bad` are the indices of records known to be unusable.
    """
    sample = np.random.default_rng(config.seed).permutation(len(records))[:STATISTICS_IMAGES].tolist()
    sample = [i for i in sample if i not in bad]
    windows = config.may_crop
    skipped_errors = config.skipped_errors

    def measure(i: int) -> Sums | None:
        record = records[i]
        read = read_sample if windows else read_image
        try:
            return channel_sums(read(record["image"], record["name"]))
        except skipped_errors:
            return None  # the error is noted when training reads the image

    def compute() -> Normalization:
        with ThreadPoolExecutor(2) as pool:
            results = list(track(pool.map(measure, sample), len(sample), "measuring brightness"))
        sums = [image_sums for image_sums in results if image_sums is not None]
        mean, std = channel_statistics(sums, bool(skipped_errors))
        return Normalization(mean, std, tuple(sorted({image_sums.pixel_type for image_sums in sums})))

    key = records.digest and digest("normalization", records.digest, windows, sample)
    return Normalization(*load_or_compute(key, compute))


def read_sample(source: ImageSource, name: str) -> np.ndarray:
    """An image as `read_image` gives it, (H, W, C); of a large image only some windows, one below the other."""
    with open_source(source, f"{name}: image") as picture:
        if not picture.is_large:
            return read_image(picture, name)
        height, width = picture.size
        parts = []
        for top in _window_starts(height):
            for left in _window_starts(width):
                box = Box(top, min(top + SIDE, height), left, left + min(SIDE, width))
                parts.append(read_image(picture, name, box=box))
        return np.ma.concatenate(parts)


def _window_starts(length: int) -> list[int]:
    """Where windows begin along a side of an image."""
    return np.linspace(0, max(length - SIDE, 0), SAMPLES).astype(int).tolist()


def channel_sums(image: np.ndarray) -> Sums:
    """The sums over an image (H, W, C)."""
    values = image.reshape(-1, image.shape[2]).astype(np.float64)
    if image.dtype.itemsize > 1:
        for channel in values.T:
            cut_outliers(channel)
    pixels: int | np.ndarray = len(values)
    if isinstance(values, np.ma.MaskedArray):
        pixels = len(values) - np.ma.getmaskarray(values).sum(axis=0)
        values = values.filled(0)
    return Sums(pixels, values.sum(axis=0), np.square(values).sum(axis=0), str(image.dtype))


def cut_outliers(values: np.ndarray) -> None:
    """Pull values (N,) far from all usual ones, such as a camera's hot pixels, in to FAR ranges from these, in place.

    One pixel in 5,000 at 65,535 makes the standard deviation of dim images ten times as large, and the network then
    sees them without contrast. Values are left alone if the usual ones are all equal.
    """
    step = len(values) // SAMPLED_PIXELS | 1  # odd, or a width such as 4,096 had pixels of 16 columns alone
    known = np.ma.compressed(values[::step])
    if known.size:
        lowest, highest = np.percentile(known, USUAL, method="nearest").tolist()
        reach = FAR * (highest - lowest)
        if 0 < reach < math.inf:
            np.clip(values, lowest - reach, highest + reach, out=values)


def channel_statistics(sums: Sequence[Sums], skip: bool = False) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels of images with these sums.

    If grey and color images are mixed, the grey ones count in every channel, as the network will see them. Raises
    DataError, unless `skip`, for images that have another number of channels than most images.
    """
    color_channels = Counter(len(image.values) for image in sums if len(image.values) > 1)
    usual = color_channels.most_common(1)[0][0] if color_channels else 1
    if len(color_channels) > 1 and not skip:
        counts = " and ".join(map(str, sorted(color_channels)))
        raise DataError(f"images have {counts} channels; --check-data lists them")
    sums = [image for image in sums if len(image.values) in (1, usual)]
    if not sums:
        raise DataError(
            "none of the training images sampled for mean and std can be read; --check-data lists the problems"
        )
    pixels = np.maximum(sum(image.pixels for image in sums), 1)  # 0 in a channel without data
    mean = sum(image.values for image in sums) / pixels
    squares = sum(image.squares for image in sums) / pixels
    std = np.sqrt(np.maximum(squares - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.where(std > LEAST_VARIATION * np.abs(mean), std, 1.0).tolist())


def measure_foreground(values: Sequence[np.ndarray]) -> Normalization | None:
    """The normalization of CT, from the `values` (n, C) of labeled voxels of each volume.

    None if no voxel is labeled, or not all volumes have as many channels.
    """
    if len({volume_values.shape[1] for volume_values in values}) != 1 or not any(map(len, values)):
        return None
    voxels = np.concatenate(values)
    lowest, highest = np.percentile(voxels, PERCENTILES).tolist()
    mean = voxels.mean(axis=0, dtype=np.float64)
    std = voxels.std(axis=0, dtype=np.float64)
    clip = (lowest, highest) if lowest < highest else None
    return Normalization(tuple(mean.tolist()), tuple(np.where(std > 0, std, 1).tolist()), (), clip)


def usable_spacings(spacings: np.ndarray) -> np.ndarray:
    """(N, 3) spacings; a volume without a spacing gets the median of the others."""
    is_known = np.asarray(spacings.any(axis=1))
    return np.where(is_known[:, None], spacings, np.median(spacings[is_known], axis=0))


def volume_normalization(
    channels: np.ndarray, foreground: Normalization | None, modality: str | None, config: DataConfig
) -> Normalization:
    """The normalization of --normalization; by default CT is clipped, other volumes are standardized one by one.

    `channels` (N,) are those of each volume, 0 for volumes that cannot be used.
    """
    counts, volumes = np.unique(channels[channels > 0], return_counts=True)
    if len(counts) > 1 and not config.skipped_errors:
        raise DataError(f"volumes have {' and '.join(map(str, counts))} channels; --check-data lists them")
    usual = int(counts[volumes.argmax()])
    is_ct = (modality or "").upper() == "CT"
    kind = config.normalization or ("ct" if is_ct else "z-score")
    if kind == "z-score":
        return Normalization((0.0,) * usual, (1.0,) * usual, (), standardize=True)
    if foreground is None:
        raise DataError(
            "--normalization ct is measured on labeled voxels, but there are none; use --normalization z-score"
        )
    return foreground


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
