"""From the records of a split to arrays: an image or volume as a network sees it, and its target."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.image_io.reader import check_sizes, decode_image
from data_utils.image_io.resize import Size, Window
from data_utils.image_io.windowed import open_windowed
from data_utils.loading.decoded_cache import DecodedSplit, Sample
from data_utils.loading.image_input import ImageInput, hide_missing, missing_pixels
from data_utils.loading.volume_input import VolumeInput
from data_utils.sources.records import Record
from data_utils.target import Target
from unet.config import Preprocess

CROPS_AROUND_CLASS = 1 / 3  # such a share of the crops is taken around a class


class Samples(ABC):
    """The samples of a split, by index.

    Args:
        fit_targets: whether targets are resized to the network's input, or keep their own size.

    Attributes:
        decoded: the samples, once all are decoded.
    """

    def __init__(self, split: Split, info: DatasetInfo, preprocess: Preprocess, *, fit_targets: bool) -> None:
        self.split = split
        self.reader = info.reader
        self.channels = info.channels
        self.preprocess = preprocess
        self.fit_targets = fit_targets or info.reader.takes_points
        self.decoded: DecodedSplit | None = None

    def load(self, index: int) -> Sample:
        """Image (C, *size) and target, from their files unless they are decoded.

        Raises DataError if they do not go together.
        """
        return self._read(self.split.records[index]) if self.decoded is None else self.decoded[index]

    @abstractmethod
    def _read(self, record: Record) -> Sample:
        """Image and target from their files."""

    @abstractmethod
    def choose_window(self, index: int, target: Target, crop_size: Size, rng: np.random.Generator) -> Window:
        """Where to crop a sample."""

    def load_crop(self, index: int, crop_size: Size, rng: np.random.Generator) -> Sample | None:
        """A random crop of a sample, read without the rest of it. Returns None if the sample must be read whole."""
        return None

    def spacing(self, index: int) -> tuple[float, ...] | None:
        """(z, y, x) in mm of a volume as the network sees it, None for images."""
        if self.split.spacings is None:
            return None
        return self.preprocess.spacing or tuple(self.split.spacings[index].tolist())


class ImageSamples(Samples):
    """Images; very large ones are read in windows."""

    def _read(self, record: Record) -> Sample:
        decoded = decode_image(record["image"], record["name"], draft_for=self.preprocess)
        image = ImageInput(decoded, self.preprocess, self.channels, record["name"])
        pixels = image.whole()
        target_size = image.size if self.fit_targets else None
        target = self.reader.read(record, decoded.size, target_size)
        return pixels, hide_missing(target, missing_pixels(decoded.array))

    def load_crop(self, index: int, crop_size: Size, rng: np.random.Generator) -> Sample | None:
        locations = self.split.class_locations.get(index)
        if self.decoded is not None or locations is None:
            return None
        record = self.split.records[index]
        name = record["name"]
        with open_windowed(record["image"]) as picture, self.reader.open_window(record) as target:
            # they may have changed since they were looked at
            check_sizes(name, picture.size, target.size)
            image = ImageInput(picture, self.preprocess, self.channels, name)
            window = crop_around(locations, target.size, image.size, crop_size, rng)
            pixels = image.window(window)
            return pixels, hide_missing(target.read(image.size, window), image.missing(window))

    def choose_window(self, index: int, target: Target, crop_size: Size, rng: np.random.Generator) -> Window:
        locations = target.locations()
        if locations is not None:
            return crop_around(locations, target.shape, target.shape, crop_size, rng)
        labels = self.reader.known_labels(target)
        return crop_window(labels, target.unknown_label(), crop_size, rng)


class VolumeSamples(Samples):
    """Volumes; no more of their decoded files is read than a patch."""

    def _read(self, record: Record) -> Sample:
        volume = VolumeInput.read(record["image"], self.preprocess, self.channels, record["name"])
        target_size = volume.size if self.fit_targets else None
        target = self.reader.read_volume(record, volume.header, target_size)
        return volume.whole(), target

    def choose_window(self, index: int, target: Target, crop_size: Size, rng: np.random.Generator) -> Window:
        # the locations of the classes are known, so that no more of the file is read than the crop
        own_size = tuple(self.split.sizes[index].tolist())
        locations = self.split.class_locations.get(index, [])
        return crop_around(locations, own_size, target.shape, crop_size, rng)


def new_samples(split: Split, info: DatasetInfo, preprocess: Preprocess, *, fit_targets: bool) -> Samples:
    """The samples of a split, of images or volumes as its records are."""
    samples_type = VolumeSamples if split.records.dims == 3 else ImageSamples
    return samples_type(split, info, preprocess, fit_targets=fit_targets)


def crop_window(labels: np.ndarray, unknown: int, crop_size: Size, rng: np.random.Generator) -> Window:
    """Where to crop `labels` (H, W) to at most `crop_size`: anywhere, or, one time in three, around a label.

    Each label in the image except `unknown` is drawn with equal chance, so that rare labels are seen as often as
    others; one of its pixels lies in the crop. (nnU-Net takes a third of its patches around foreground.)
    """

    def find_pixel(class_share: float, pixel_share: float) -> Sequence[int] | None:
        present = [label for label in _distinct(labels) if label != unknown]
        if not present:
            return None
        label = present[int(class_share * len(present))]
        pixels = np.flatnonzero(labels.ravel() == label)
        pixel = np.unravel_index(pixels[int(pixel_share * len(pixels))], labels.shape)
        return list(map(int, pixel))

    return _draw(labels.shape, crop_size, rng, find_pixel)


def _distinct(labels: np.ndarray) -> list[int]:
    """The labels in the image, in order."""
    if labels.dtype == np.uint8:  # counting is much faster than sorting
        return np.flatnonzero(np.bincount(labels.ravel())).tolist()
    return np.unique(labels).tolist()


def crop_around(
    class_locations: list[np.ndarray], mask_size: Size, size: Size, crop_size: Size, rng: np.random.Generator
) -> Window:
    """`crop_window` for a mask resized to `size` if only some pixels of each class are known.

    `class_locations` (n, axes) are pixels of the mask at its own size, `mask_size`.
    """

    def find_pixel(class_share: float, pixel_share: float) -> Sequence[int] | None:
        if not class_locations:
            return None
        locations = class_locations[int(class_share * len(class_locations))]
        pixel = locations[int(pixel_share * len(locations))].tolist()
        return [position * length // own for position, length, own in zip(pixel, size, mask_size, strict=True)]

    return _draw(size, crop_size, rng, find_pixel)


def _draw(
    size: Size, crop_size: Size, rng: np.random.Generator, find_pixel: Callable[[float, float], Sequence[int] | None]
) -> Window:
    """A random window, no larger than the whole.

    Args:
        find_pixel: gives a pixel of a class that the crop has inside, from two numbers in [0, 1): the class as a share
            of the number of classes, and the pixel as a share of its pixels; None if there is no class.
    """
    kind, class_share, pixel_share = rng.random(3)
    starts = [int(rng.integers(max(length - side, 0) + 1)) for length, side in zip(size, crop_size, strict=True)]
    pixel = find_pixel(class_share, pixel_share) if kind < CROPS_AROUND_CLASS else None
    window = []
    # where the pixel lies in the crop
    shares = [0.0] * len(size) if pixel is None else rng.random(len(size))
    for axis, (length, side) in enumerate(zip(size, crop_size, strict=True)):
        start = starts[axis]
        if pixel is not None:
            start = int(np.clip(pixel[axis] - int(shares[axis] * side), 0, max(length - side, 0)))
        window.append((start, min(start + side, length)))
    return tuple(window)
