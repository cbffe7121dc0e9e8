"""A data set, and what must be known of it before the first step: sizes, classes, channels, brightness."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from data_utils import sources
from data_utils.batching import padded_shapes
from data_utils.masks import MaskClasses, discover, resolve
from data_utils.shapes import CLASS_NAMES

STATISTICS_IMAGES = 128  # enough for mean and standard deviation to settle


@dataclass(frozen=True)
class Data:
    """Both splits and what was measured.

    Args:
        train_sizes, val_sizes: (N, 2) as (H, W) in the files.
        class_pixels: how many pixels of each class the masks hold.
        mean, std: one number for each channel of the training images, in the files' own value range.
    """

    train: Sequence[dict]
    val: Sequence[dict]
    train_sizes: np.ndarray
    val_sizes: np.ndarray
    classes: MaskClasses
    class_pixels: list[int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def shapes(
        self, target_size: Callable[[int, int], tuple[int, int]], crop_size: tuple[int, int] | None, smallest: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(N, 2) shapes at the network: of training images cropped and padded, of validation images as they are.

        `target_size` is the resizing; no training shape has a side below `smallest`.
        """
        train, val = (
            np.array([target_size(*size) for size in sizes.tolist()]) for sizes in (self.train_sizes, self.val_sizes)
        )
        if crop_size:
            train[:] = crop_size
        return np.maximum(padded_shapes(train), smallest), val

    def fingerprint(self) -> str:
        """Changes with the names and sizes of the images in either split."""
        digest = hashlib.sha256()
        for records, sizes in ((self.train, self.train_sizes), (self.val, self.val_sizes)):
            digest.update(
                "\n".join(record["name"] for record in records).encode() + np.ascontiguousarray(sizes).tobytes()
            )
        return f"{len(self.train)} + {len(self.val)} images ({digest.hexdigest()[:12]})"

    def __str__(self) -> str:
        named = zip(self.classes.values, self.classes.names, strict=True)
        ignored = self.classes.ignore_value
        return (
            f"{len(self.train)} training and {len(self.val)} validation images, {self.channels} channels, classes "
            + ", ".join(f"{value}={name}" for value, name in named)
            + ("" if ignored is None else f", ignored {ignored}")
        )


def load_data(
    dataset: str,
    read: Callable[..., np.ndarray],
    progress: Callable[[Iterable, int, str], Iterable],
    *,
    classes: str | None,
    ignore_index: str | None,
    seed: int,
    **options,
) -> Data:
    """Find the data set (`options` as in `sources.load`), read every header, every mask and a sample of the images.

    `read(source, name)` gives an image as (H, W, C). Raises DataError for what is wrong with the files, naming them.
    """
    train, val = sources.load(dataset, seed=seed, **options)
    if dataset == "shapes":
        classes = classes or ",".join(f"{value}={name}" for value, name in enumerate(CLASS_NAMES))
    train_sizes = sources.check_sizes(train, lambda items, n: progress(items, n, "checking training files"))
    val_sizes = sources.check_sizes(val, lambda items, n: progress(items, n, "checking validation files"))
    masks = [(record["mask"], record["name"]) for split in (train, val) for record in split]
    found = discover(masks, lambda items, n: progress(items, n, "reading mask values"))
    mask_classes = resolve(found, classes, ignore_index)
    chosen = np.random.default_rng(seed).permutation(len(train))[:STATISTICS_IMAGES]
    samples = [train[int(index)] for index in chosen]
    with ThreadPoolExecutor() as pool:
        images = pool.map(lambda sample: read(sample["image"], sample["name"]), samples)
        mean, std = channel_statistics(progress(images, len(samples), "measuring brightness"))
    pixels = [found.get(value, 0) for value in mask_classes.values]
    return Data(train, val, train_sizes, val_sizes, mask_classes, pixels, len(mean), mean, std)


def channel_statistics(images: Iterable[np.ndarray]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels of (H, W, C) images, in float64.

    Where grey and colour images are mixed, the grey ones count in every channel, as the network will see them.
    """
    pixels, total, squares = 0, np.zeros(1), np.zeros(1)
    for image in images:
        values = image.reshape(-1, image.shape[2]).astype(np.float64)
        pixels += len(values)
        total = total + values.sum(axis=0)
        squares = squares + np.square(values).sum(axis=0)
    mean = total / pixels
    std = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
