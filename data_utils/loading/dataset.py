"""Records become tensors: images as the network takes them, and their targets."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.image_io.reader import decode_image, open_source
from data_utils.image_io.resize import Size, Window
from data_utils.loading.augmentation import Augmentation, pack_augmentations, sample_augmentation
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.crops import crop_around, crop_window
from data_utils.loading.decoded_cache import DecodedSplit, Sample, decode_once
from data_utils.loading.image_input import ImageInput, hide_missing, missing_pixels
from data_utils.loading.volume_input import VolumeInput
from data_utils.target import Target
from runtime.cache import digest
from runtime.errors import DataError
from unet.config import Preprocess


class SegmentationDataset(Dataset):
    """Image and target of a slot, decoded and resized; everything else is done in batches on the device.

    A sample that cannot be read and is skipped becomes a filler: an image of the mean value with an unknown target. So
    the order of all other samples stays the same.

    Attributes:
        fit_targets: whether targets follow the images to the network's input size; points always do.
        threads: how many threads of a loader process decode the samples of a batch.
        decoded: the samples, once all are decoded.
        kept: index -> a sample that this process has decoded, whose arrays may not be written to.
        room: the bytes that further samples may take in memory; the others are decoded again.
    """

    fit_targets: bool
    threads: int = 1

    def __init__(self, split: Split, info: DatasetInfo, preprocess: Preprocess) -> None:
        self.split = split
        self.config = info.config
        self.preprocess = preprocess
        self.channels = info.channels
        self.reader = info.reader
        self.target = info.reader.target
        self.decoded: DecodedSplit | None = None
        self.kept: dict[int, Sample] = {}
        self.room = 0
        mean, std = info.normalization.mean, info.normalization.std
        # the model's statistics, not those of the files: it may need other preprocessing
        if split.records.dims == 3:
            mean = preprocess.mean or (0.0,) * self.channels
            std = preprocess.std or (1.0,) * self.channels
        self.fill = np.asarray(mean, np.float32)  # (C,): the value of padding
        self.std = np.asarray(std, np.float32)  # (C,)

    def __len__(self) -> int:
        return len(self.split)

    def __getitems__(self, slots: list[Slot]) -> list[tuple[Any, ...]]:
        """The samples of a batch, which a loader asks for at once."""
        if self.threads == 1:
            return [self[slot] for slot in slots]
        return list(self._pool.map(self.__getitem__, slots))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """Threads of this process, started when they are first needed, which is in a loader process."""
        return ThreadPoolExecutor(self.threads)

    def read(self, slot: Slot) -> tuple[np.ndarray, Target, str | None]:
        """Image (C, *size) at the network's input size, target, and the problem if both are fillers."""
        try:
            image, target = self.sample(slot)
        except self.config.skipped_errors as error:
            image = np.broadcast_to(_column(self.fill, slot.shape), (len(self.fill), *slot.shape))
            return image, self.reader.unknown_target(slot.shape), str(error)
        if slot.is_filler:
            return image, self.reader.unknown_target(target.shape), None
        return image, target.renumber(), None

    def sample(self, slot: Slot) -> Sample:
        """Image (C, *size), and its target."""
        return self.load(slot.index)

    def load(self, index: int) -> Sample:
        """Image (C, *size) and target, from their files unless they are decoded.

        Raises DataError if they do not go together, and for a sample that is known to be unusable.
        """
        if self.decoded is not None:
            return self.decoded[index]
        if index in self.kept:
            return self.kept[index]
        if index in self.split.bad:
            raise DataError(self.split.bad[index])
        record = self.split.records[index]
        name = record["name"]
        fits = self.fit_targets or self.reader.takes_points
        if self.split.records.dims == 3:
            volume = VolumeInput.read(record["image"], self.preprocess, self.channels, name)
            target = self.reader.read_volume(record, volume.header, volume.size if fits else None)
            return volume.whole(), target  # volumes are kept by --cache
        decoded = decode_image(record["image"], name, self.preprocess)
        image = ImageInput(decoded, self.preprocess, self.channels, name)
        pixels = image.whole()
        target = self.reader.read(record, decoded.size, image.size if fits else None)
        target = hide_missing(target, missing_pixels(decoded.array))
        arrays = [pixels, *target.arrays()]
        size = sum(array.nbytes for array in arrays)
        if size <= self.room:
            self.room -= size
            for array in arrays:
                array.flags.writeable = False
            self.kept[index] = pixels, target
        return pixels, target

    def cache(self) -> None:
        """Decode all samples once, unless an earlier run has done so. Raises DataError if the disk is full."""
        preprocess = replace(self.preprocess, turned=False)  # that is of augmentation, which comes later
        spacings = self.split.spacings
        spacing_bytes = None if spacings is None else spacings.tobytes()
        content = self.split.records.digest
        kind = (type(self).__name__, self.target.__name__)
        key = content and digest(*kind, preprocess, self.channels, spacing_bytes, content, self.reader, self.split.bad)
        self.decoded = decode_once(self.load, len(self), self.target, key, self.config.skipped_errors)


class TrainingDataset(SegmentationDataset):
    """Images and targets at the network's input size, cropped and then padded to the slot's shape.

    A crop and an augmentation, which is done later, are functions of (seed, epoch, index).
    """

    fit_targets = True

    def sample(self, slot: Slot) -> Sample:
        crop_size = self.config.crop_size
        if crop_size is None:
            return self.load(slot.index)
        rng = np.random.default_rng([self.config.seed, slot.epoch, slot.index, 1])
        if self.split.records.dims == 2 and self.decoded is None and slot.index in self.split.class_locations:
            return self.load_crop(slot.index, crop_size, rng)
        image, target = self.load(slot.index)
        window = self.choose_window(slot.index, target, crop_size, rng)
        sides = tuple(slice(*side) for side in window)
        return image[(slice(None), *sides)], target.crop(sides)

    def load_crop(self, index: int, crop_size: Size, rng: np.random.Generator) -> Sample:
        """A random crop of a very large image, read without the rest of it."""
        record = self.split.records[index]
        with open_source(record["image"]) as picture:
            image = ImageInput(picture, self.preprocess, self.channels, record["name"])
            window = crop_around(self.split.class_locations[index], picture.size, image.size, crop_size, rng)
            pixels, missing = image.window(window)
            target = self.reader.read(record, picture.size, image.size, window)
        return pixels, hide_missing(target, missing)

    def choose_window(self, index: int, target: Target, crop_size: Size, rng: np.random.Generator) -> Window:
        """Where to crop a sample."""
        if self.split.records.dims == 3:
            # the locations of the classes are known, so that no more of the decoded file is read than the crop
            own_size = tuple(self.split.sizes[index].tolist())
            locations = self.split.class_locations.get(index, [])
            return crop_around(locations, own_size, target.shape, crop_size, rng)
        points = target.locations()
        if points is not None:
            return crop_around(points, target.shape, target.shape, crop_size, rng)
        return crop_window(self.reader.known_labels(target), target.unknown_label(), crop_size, rng)

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Target, Augmentation, Slot, str | None]:
        image, target, problem = self.read(slot)
        if target.shape != slot.shape:
            image, target = self._pad(image, target, slot.shape)
        spacing = None  # (z, y, x) in mm of a volume as the network sees it
        if self.split.spacings is not None:
            spacing = self.preprocess.spacing or tuple(self.split.spacings[slot.index].tolist())
        augmentation = sample_augmentation(
            (slot.epoch, slot.index),
            strength=self.config.augment or "basic",
            seed=self.config.seed,
            size=slot.shape,
            channels=self.channels,
            spacing=spacing,
            may_mirror=self.reader.mirrors,
        )
        if augmentation.is_mirrored:
            target = self.reader.mirror(target)
        return _tensor(image), target.map(_tensor), augmentation, slot, problem

    def _pad(self, image: np.ndarray, target: Target, shape: tuple[int, ...]) -> Sample:
        fill = self.fill.round() if image.dtype == np.uint8 else self.fill
        padded = np.full((len(image), *shape), _column(fill, shape), dtype=image.dtype)
        inside = tuple(slice(side) for side in target.shape)
        padded[(slice(None), *inside)] = image
        return padded, target.pad(shape)


class EvaluationDataset(SegmentationDataset):
    """Images and targets for scores: nothing is padded or cropped, and targets keep the size of their files."""

    fit_targets = False

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Target, int, str | None]:
        image, target, problem = self.read(slot)
        return _tensor(image), target.map(_tensor), slot.index, problem


def _column(values: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """(C,) -> (C, 1, 1, ...), to go with images of `size`."""
    ones = (1,) * len(size)
    return values.reshape(-1, *ones)


def _tensor(array: np.ndarray) -> Tensor:
    """A tensor of the array; a copy where the array is mapped from a file, which must not be written to."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


class TrainingBatch(TypedDict):
    """The samples of a micro-batch, for `augment`.

    Keys:
        images: (B, C, *size).
        targets: the targets of these images, of one size.
        packed_augmentations: `pack_augmentations` of the augmentations.
        problems: the problems of the samples left out.
    """

    images: Tensor
    targets: Target
    augmentations: list[Augmentation]
    packed_augmentations: Tensor
    slots: list[Slot]
    problems: list[str]


class EvaluationBatch(TypedDict):
    """The samples of a forward pass of an evaluation.

    Keys:
        images: (B, C, *size).
        targets: the targets of these images, each of its own size.
        indices: the indices of their records.
        problems: the problems of the samples left out.
    """

    images: Tensor
    targets: list[Target]
    indices: list[int]
    problems: list[str]


CollatedBatch = TrainingBatch | EvaluationBatch


def collate_training(samples: list[tuple]) -> TrainingBatch:
    """A batch of samples of `TrainingDataset`."""
    images, targets, augmentations, slots, problems = zip(*samples, strict=True)
    stacked_targets = type(targets[0]).stack(targets)
    return {
        "images": torch.stack(images),
        "targets": stacked_targets,
        "augmentations": list(augmentations),
        "packed_augmentations": pack_augmentations(augmentations, len(images[0])),
        "slots": list(slots),
        "problems": [problem for problem in problems if problem is not None],
    }


def collate_evaluation(samples: list[tuple]) -> EvaluationBatch:
    """A batch of samples of `EvaluationDataset`."""
    images, targets, indices, problems = zip(*samples, strict=True)
    return {
        "images": torch.stack(images),
        "targets": list(targets),
        "indices": list(indices),
        "problems": [problem for problem in problems if problem is not None],
    }
