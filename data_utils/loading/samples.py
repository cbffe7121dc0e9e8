"""From the records of a split to arrays: an image or volume as a network sees it, and its target."""

from abc import ABC, abstractmethod

import numpy as np

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.image_io.reader import check_sizes, decode_image
from data_utils.image_io.resize import Size, Window
from data_utils.image_io.windowed import WindowedArray, open_windowed
from data_utils.loading.crop import crop_around, crop_window
from data_utils.loading.decoded_cache import DecodedSplit, Sample
from data_utils.loading.image_input import ImageInput, hide_missing, missing_pixels
from data_utils.loading.volume_input import VolumeInput
from data_utils.sources.records import Record
from data_utils.target import Target
from unet.config import Preprocess


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
        image = ImageInput(WindowedArray(*decoded), self.preprocess, self.channels, record["name"])
        pixels = image.whole()
        target_size = image.size if self.fit_targets else None
        target = self.reader.read(record, decoded.size, target_size)
        return pixels, hide_missing(target, missing_pixels(decoded.pixels))

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
