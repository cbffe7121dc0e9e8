"""Records become tensors: images as the network takes them, and their targets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.image_io.reader import check_sizes
from data_utils.image_io.regions import regions_of
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.crop import crop_around, crop_window
from data_utils.loading.decoded_cache import DecodedSplit, Sample, decode_once
from data_utils.loading.draws import Draw, draw, pack_draws
from data_utils.loading.image_input import ImageInput
from data_utils.loading.volume_input import VolumeInput
from data_utils.sources.records import Record
from data_utils.targets.reader import TargetReader
from runtime.cache import digest
from runtime.errors import DataError
from tasks.target import Target
from unet.config import Preprocess


def decode_image(record: Record, preprocess: Preprocess, channels: int, reader: TargetReader, fit: bool) -> Sample:
    """Image (C, h, w) at the network's input size; target (H, W) at its own, or at (h, w) to fit it.

    Raises DataError where image and target are not of the same proportions.
    """
    image = ImageInput.read(record["image"], preprocess, channels, record["name"])
    return image.whole(), reader.read(record, image.regions.size, image.size if fit else None)


def decode_volume(record: Record, preprocess: Preprocess, channels: int, reader: TargetReader, fit: bool) -> Sample:
    """As `decode_image`: (C, d, h, w) float32, (D, H, W). Raises DataError where sizes differ in voxels."""
    volume = VolumeInput.read(record["image"], preprocess, channels, record["name"])
    target = reader.read_volume(record, volume.header, volume.size if fit else None)
    return volume.whole(), target


class SegmentationDataset(Dataset):
    """Image and target of a slot, decoded and resized; everything else is done in batches on the device.

    A skipped sample, which cannot be read, becomes a filler: an image of the mean value of which nothing is known. So
    the order of all others stays the same.

    Attributes:
        fit_targets: whether targets follow the images to the network's input size.
    """

    fit_targets: bool

    def __init__(self, split: Split, info: DatasetInfo, preprocess: Preprocess) -> None:
        self.split, self.config, self.preprocess = split, info.config, preprocess
        self.channels, self.reader, self.target = info.channels, info.reader, info.reader.target
        # of what the network is shown: of volumes, which a model may want prepared in another way, not of the files
        mean, std = info.normalization[:2]
        if split.records.dims == 3:
            mean, std = preprocess.mean or (0.0,) * self.channels, preprocess.std or (1.0,) * self.channels
        self.fill = np.asarray(mean, dtype=np.float32)  # (C,) pixel value of padding
        self.std = np.asarray(std, dtype=np.float32)
        self.decode = decode_volume if split.records.dims == 3 else decode_image
        self.decoded: DecodedSplit | None = None

    def __len__(self) -> int:
        return len(self.split)

    def read(self, slot: Slot) -> tuple[np.ndarray, Target, str | None]:
        """Image (C, *size) at the network's input size, target, and what is wrong where both are filled."""
        problem = self.split.bad.get(slot.index)
        if problem is None:
            try:
                image, target = self.sample(slot)
                return image, self.target.unknown(target.shape) if slot.filler else target, None
            except self.config.skipped_errors as error:
                problem = str(error)
        image = np.broadcast_to(_column(self.fill, slot.shape), (len(self.fill), *slot.shape))
        return image, self.target.unknown(slot.shape), problem

    def sample(self, slot: Slot) -> Sample:
        """Image (C, *size), and its target."""
        return self._decode(slot.index) if self.decoded is None else self.decoded[slot.index]

    def _decode(self, index: int) -> Sample:
        record = self.split.records[index]
        return self.decode(record, self.preprocess, self.channels, self.reader, self.fit_targets)

    def cache(self) -> None:
        """Decode all samples once, unless an earlier run has done so. Raises DataError if the disk is full."""
        seen, spacings = self.preprocess, self.split.spacings
        how = (seen.image_size, seen.scale, seen.detect_unit_range, seen.draft, self.channels)
        resampled = (seen.spacing, seen.clip, seen.standardize, None if spacings is None else spacings.tobytes())
        content = self.split.records.digest
        key = content and digest(type(self).__name__, how, resampled, content, *self.reader.key, self.split.bad)
        self.decoded = decode_once(self._decode_good, len(self), self.target, key, self.config.skipped_errors)

    def _decode_good(self, index: int) -> Sample:
        if index in self.split.bad:
            raise DataError(self.split.bad[index])
        return self._decode(index)


class TrainingDataset(SegmentationDataset):
    """Targets follow the image to the network's input size; crops, then padding to the slot's shape.

    A crop and the draw of an augmentation, which is done later, are functions of (seed, epoch, index).
    """

    fit_targets = True

    def sample(self, slot: Slot) -> Sample:
        crop_size = self.config.crop_size
        if crop_size is None:
            return super().sample(slot)
        rng = np.random.default_rng([self.config.seed, slot.epoch, slot.index, 1])
        is_volume, locations = self.split.records.dims == 3, self.split.class_locations.get(slot.index)
        if self.decoded is None and locations is not None and not is_volume:
            return self._window(self.split.records[slot.index], crop_size, locations, rng)
        image, target = super().sample(slot)
        if is_volume:  # where its classes are is known: of the file no more is read than the crop
            own_size = tuple(self.split.sizes[slot.index].tolist())
            window = crop_around(locations or [], own_size, target.shape, crop_size, rng)
        else:
            unknown = target.unknown_value(target.names()[0])
            window = crop_window(target.main, unknown, crop_size, rng)
        part = tuple(slice(*side) for side in window)
        return image[(slice(None), *part)], target.at(part)

    def _window(
        self, record: Record, crop_size: Sequence[int], locations: list[np.ndarray], rng: np.random.Generator
    ) -> Sample:
        """A random crop of a large image and of its target; no more is read of either."""
        name = record["name"]
        with regions_of(record["image"]) as regions, self.reader.open_window(record) as target:
            check_sizes(name, regions.size, target.size)  # they may have changed since they were looked at
            image = ImageInput(regions, self.preprocess, self.channels, name)
            window = crop_around(locations, target.size, image.size, tuple(crop_size), rng)
            return image.window(window), target.read(image.size, window)

    def _spacing(self, index: int) -> tuple[float, ...] | None:
        """(z, y, x) in mm of a volume as the network sees it, None of images."""
        if self.split.spacings is None:
            return None
        return self.preprocess.spacing or tuple(self.split.spacings[index].tolist())

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Target, Draw, tuple[int, int], str | None]:
        image, target, problem = self.read(slot)
        if target.shape != slot.shape:
            image, target = self._pad(image, target, slot.shape)
        drawn = draw(
            (slot.epoch, slot.index),
            strength=self.config.augment,
            seed=self.config.seed,
            size=slot.shape,
            channels=self.channels,
            spacing=self._spacing(slot.index),
        )
        return _tensor(image), target.map(_tensor), drawn, (slot.epoch, slot.index), problem

    def _pad(self, image: np.ndarray, target: Target, shape: tuple[int, ...]) -> Sample:
        fill, inside = self.fill.round() if image.dtype == np.uint8 else self.fill, tuple(map(slice, target.shape))
        padded = np.full((len(image), *shape), _column(fill, shape), dtype=image.dtype)
        padded[(slice(None), *inside)] = image
        padded_target = self.target.unknown(shape)
        for whole, part in zip(padded_target.arrays(), target.arrays(), strict=True):
            whole[inside] = part
        return padded, padded_target


class EvaluationDataset(SegmentationDataset):
    """Nothing is padded or cropped, and targets keep their own size: scores are those of the files."""

    fit_targets = False

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Target, int, str | None]:
        image, target, problem = self.read(slot)
        return _tensor(image), target.map(_tensor), slot.index, problem


def _column(values: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """(C,) -> (C, 1, 1, ...), to go with images of `size`."""
    return values.reshape(-1, *(1,) * len(size))


def _tensor(array: np.ndarray) -> Tensor:
    """A tensor of the array; a copy where the array is mapped from a file, which must not be written to."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def collate_training(samples: list[tuple]) -> dict[str, Any]:
    """A batch for `augment`.

    images (B, C, *size), targets (B, *size), draws: [Draw, ...], numbers: `pack_draws` of them, keys:
    [(epoch, index), ...], problems: of the samples left out.
    """
    images, targets, draws, keys, problems = zip(*samples, strict=True)
    stacked = type(targets[0]).stack(targets)
    drawn = {"draws": list(draws), "numbers": pack_draws(draws, len(images[0])), "keys": list(keys)}
    return {"images": torch.stack(images), "targets": stacked} | drawn | _problems(problems)


def collate_evaluation(samples: list[tuple]) -> dict[str, Any]:
    """images (B, C, *size), targets: a list, each of its own size, indices: [index, ...], problems as above."""
    images, targets, indices, problems = zip(*samples, strict=True)
    return {"images": torch.stack(images), "targets": list(targets), "indices": list(indices)} | _problems(problems)


def _problems(problems: Sequence[str | None]) -> dict[str, list[str]]:
    return {"problems": [problem for problem in problems if problem is not None]}
