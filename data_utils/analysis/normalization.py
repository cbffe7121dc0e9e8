"""Mean and standard deviation of the training images, which normalize what the network sees."""

from collections import Counter
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import ImageSource
from data_utils.image_io.reader import read_image
from data_utils.image_io.windowed import open_if_large
from data_utils.sources.records import Records
from runtime.cache import digest, load_or_compute
from runtime.console import track
from runtime.errors import DataError

STATISTICS_IMAGES = 128  # enough for mean and standard deviation to settle
SAMPLES = 4  # a large image is measured on so many windows down and across
SIDE = 512  # pixels of a side of such a window


class Sums(NamedTuple):
    """The sums over the pixels of an image.

    Args:
        pixels: how many there are; of a raster (C,), how many hold data in each channel.
        values: (C,) float64, the sum of each channel.
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

    def compute() -> list:
        with ThreadPoolExecutor(2) as pool:
            results = list(track(pool.map(measure, sample), len(sample), "measuring brightness"))
        sums = [image_sums for image_sums in results if image_sums is not None]
        mean, std = channel_statistics(sums, bool(skipped_errors))
        return [mean, std, sorted({image_sums.pixel_type for image_sums in sums})]

    key = records.digest and digest("normalization", records.digest, windows, sample)
    mean, std, pixel_types = map(tuple, load_or_compute(key, compute))
    return Normalization(mean, std, pixel_types)


def read_sample(source: ImageSource, name: str) -> np.ndarray:
    """An image as `read_image` gives it, (H, W, C); for a large image, only some windows, one below the other."""
    with open_if_large(source) as picture:
        if picture is None:
            return read_image(source, name)
        height, width = picture.size
        parts = []
        for top in _window_starts(height):
            for left in _window_starts(width):
                window = picture.read(top, min(top + SIDE, height), left, left + min(SIDE, width))
                parts.append(read_image(window, name))
        if any(isinstance(part, np.ma.MaskedArray) for part in parts):
            return np.ma.concatenate(parts)
        return np.concatenate(parts)


def _window_starts(length: int) -> list[int]:
    """Where windows begin along a side of an image."""
    return np.linspace(0, max(length - SIDE, 0), SAMPLES).astype(int).tolist()


def channel_sums(image: np.ndarray) -> Sums:
    """The sums over an image (H, W, C)."""
    values = image.reshape(-1, image.shape[2]).astype(np.float64)
    pixels: int | np.ndarray = len(values)
    if isinstance(values, np.ma.MaskedArray):
        pixels = len(values) - np.ma.getmaskarray(values).sum(axis=0)
        values = values.filled(0)
    return Sums(pixels, values.sum(axis=0), np.square(values).sum(axis=0), str(image.dtype))


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
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
