"""Mean and standard deviation of the training images, which normalise what the network sees."""

from collections import Counter
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from data_utils.config import DataConfig
from data_utils.image_io.formats import ImageSource
from data_utils.image_io.reader import read_image
from data_utils.image_io.regions import large_regions
from data_utils.sources.records import Records
from runtime.cache import cached, digest
from runtime.console import track
from runtime.errors import DataError

STATISTICS_IMAGES = 128  # enough for mean and standard deviation to settle
SAMPLES, SIDE = 4, 512  # windows down and across that a large image is measured on, and their side
Sums = tuple[int, np.ndarray, np.ndarray, str]


class Normalization(NamedTuple):
    """One mean and standard deviation for each channel, in the files' own value range; NumPy's names of the types.

    Of volumes also what comes before: they are clipped, and standardised by themselves (see `Preprocess`).
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    pixel_types: tuple[str, ...]
    clip: tuple[float, float] | None = None
    standardize: bool = False


def measure_normalization(records: Records, config: DataConfig, bad: Container[int]) -> Normalization:
    """Of a sample of the images, drawn by the seed, that can be read; kept until a file changes.

    `bad` are the indices of records known to be unusable.
    """
    chosen = np.random.default_rng(config.seed).permutation(len(records))[:STATISTICS_IMAGES].tolist()
    chosen = [i for i in chosen if i not in bad]
    windows, skip = config.may_crop, config.skipped_errors

    def sums_of(i: int) -> Sums | None:
        record = records[i]
        read = read_sample if windows else read_image
        try:
            return channel_sums(read(record["image"], record["name"]))
        except skip:
            return None  # noted when training meets it

    def compute() -> list:
        with ThreadPoolExecutor(2) as pool:
            every = list(track(pool.map(sums_of, chosen), len(chosen), "measuring brightness"))
        sums = [found for found in every if found is not None]
        return [*channel_statistics(sums, bool(skip)), sorted({found[3] for found in sums})]

    key = records.digest and digest("normalization", records.digest, windows, chosen)
    mean, std, pixel_types = map(tuple, cached(key, compute))
    return Normalization(mean, std, pixel_types)


def read_sample(source: ImageSource, name: str) -> np.ndarray:
    """An image as `read_image` gives it, (H, W, C); of a large one only some windows, one below the other."""
    with large_regions(source) as regions:
        if regions is None:
            return read_image(source, name)
        tops, lefts = (np.linspace(0, max(side - SIDE, 0), SAMPLES).astype(int).tolist() for side in regions.size)
        height, width = regions.size
        parts = [
            read_image(regions.read(top, min(top + SIDE, height), left, left + min(SIDE, width)), name)
            for top in tops
            for left in lefts
        ]
        return np.concatenate(parts)


def channel_sums(image: np.ndarray) -> Sums:
    """Pixels of an image (H, W, C), the sums of their values and squares, (C,) in float64, and their type."""
    values = image.reshape(-1, image.shape[2]).astype(np.float64)
    return len(values), values.sum(axis=0), np.square(values).sum(axis=0), str(image.dtype)


def channel_statistics(sums: Sequence[Sums], skip: bool = False) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels of images with these sums.

    Where grey and colour images are mixed, the grey ones count in every channel, as the network will see them. Other
    numbers of channels than that of most images are a DataError, unless they are to be skipped.
    """
    channels = Counter(len(total) for _, total, _, _ in sums if len(total) > 1)
    usual = channels.most_common(1)[0][0] if channels else 1
    if len(channels) > 1 and not skip:
        raise DataError(f"images have {' and '.join(map(str, sorted(channels)))} channels; --check-data lists them")
    sums = [found for found in sums if len(found[1]) in (1, usual)]
    if not sums:
        raise DataError(
            "none of the training images sampled for mean and std can be read; --check-data lists the problems"
        )
    pixels = sum(found[0] for found in sums)
    mean = sum(found[1] for found in sums) / pixels + np.zeros(usual)
    squares = sum(found[2] for found in sums) / pixels + np.zeros(usual)
    std = np.sqrt(np.maximum(squares - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
