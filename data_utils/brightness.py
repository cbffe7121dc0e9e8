"""Mean and standard deviation of the training images, which normalise what the network sees."""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from runtime.cache import digest, cached
from runtime.errors import DataError

STATISTICS_IMAGES = 128  # enough for mean and standard deviation to settle
Sums = tuple[int, np.ndarray, np.ndarray, str]


def measure(
    records: Sequence[dict],
    key: str | None,
    bad: Container[int],
    read: Callable[..., np.ndarray],
    progress: Callable,
    seed: int,
    skip: tuple[type[Exception], ...],
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
    """Mean, standard deviation and pixel types of a sample of the images that can be read, remembered under `key`."""
    chosen = np.random.default_rng(seed).permutation(len(records))[:STATISTICS_IMAGES].tolist()
    chosen = [i for i in chosen if i not in bad]

    def read_one(i: int) -> Sums | None:
        try:
            return channel_sums(read(records[i]["image"], records[i]["name"]))
        except skip:
            return None  # noted when training meets it

    def compute() -> list:
        with ThreadPoolExecutor(2) as pool:
            sums = list(progress(pool.map(read_one, chosen), len(chosen), "measuring brightness"))
        sums = [found for found in sums if found is not None]
        return [*channel_statistics(sums, bool(skip)), sorted({found[3] for found in sums})]

    mean, std, types = cached(key and digest("brightness", key, chosen), compute)
    return tuple(mean), tuple(std), tuple(types)


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
        raise DataError("none of the images that brightness is measured on can be read")
    pixels = sum(found[0] for found in sums)
    mean = sum(found[1] for found in sums) / pixels + np.zeros(usual)
    squares = sum(found[2] for found in sums) / pixels + np.zeros(usual)
    std = np.sqrt(np.maximum(squares - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
