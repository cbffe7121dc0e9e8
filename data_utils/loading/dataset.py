"""Records become tensors: images as the network takes them, masks as class indices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.class_map import ClassMap
from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.reader import read_mask
from data_utils.image_io.resize import resize_mask
from data_utils.image_io.volumes import read_label_volume
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.crop import crop_around, crop_window
from data_utils.loading.decoded_cache import DecodedSplit, Pair, decode_once
from data_utils.loading.draws import Draw, draw, pack_draws
from data_utils.loading.transforms import check_sizes, network_input, random_window
from data_utils.loading.volume_input import VolumeInput
from data_utils.sources.records import Record
from runtime.cache import digest
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, Preprocess


def decode_image(record: Record, preprocess: Preprocess, channels: int, class_map: ClassMap, fit_mask: bool) -> Pair:
    """Image (C, h, w) at the network's input size; mask (H, W) uint8 class indices at its own, or at (h, w) to fit it.

    Raises DataError where image and mask are not of the same proportions.
    """
    name = record["name"]
    image, size = network_input(record["image"], preprocess, channels, name)
    mask = read_mask(record["mask"], name)
    check_sizes(name, size, mask.shape[:2])
    if fit_mask:  # the nearest pixels first: the fewer to look up
        mask = resize_mask(mask, image.shape[1:])
    return image, class_map.encode(mask, name)


def decode_volume(record: Record, preprocess: Preprocess, channels: int, class_map: ClassMap, fit_mask: bool) -> Pair:
    """As `decode_image`: (C, d, h, w) float32, (D, H, W). Raises DataError where sizes differ in voxels."""
    name, image, label = record["name"], record["image"], record["mask"]
    assert isinstance(image, VolumeFile) and isinstance(label, VolumeFile)
    volume = VolumeInput.read(image, preprocess, channels, name)
    labels, header = read_label_volume(label, name)
    if header.size != volume.header.size:
        sizes = [" x ".join(map(str, size)) for size in (volume.header.size, header.size)]
        raise DataError(f"{name}: image is {sizes[0]}, its label {sizes[1]} (depth x height x width)")
    mask = class_map.encode_volume(labels, name)
    if fit_mask:
        mask = resize_mask(mask, volume.size)
    return volume.whole(), mask


class SegmentationDataset(Dataset):
    """Image and mask of a slot, decoded and resized; everything else is done in batches on the device.

    A skipped sample, which cannot be read, becomes a filler: an image of the mean value with a wholly ignored mask. So
    the order of all others stays the same.

    Attributes:
        fit_masks: whether masks follow the images to the network's input size.
    """

    fit_masks: bool

    def __init__(self, split: Split, info: DatasetInfo, preprocess: Preprocess) -> None:
        self.split, self.config, self.preprocess = split, info.config, preprocess
        self.channels, self.class_map = info.channels, info.class_map
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

    def read(self, slot: Slot) -> tuple[np.ndarray, np.ndarray, str | None]:
        """Image (C, *size) at the network's input size, mask uint8, and what is wrong where both are filled."""
        problem = self.split.bad.get(slot.index)
        if problem is None:
            try:
                image, mask = self.read_pair(slot)
                return image, np.full_like(mask, IGNORE_INDEX) if slot.filler else mask, None
            except self.config.skipped_errors as error:
                problem = str(error)
        image = np.broadcast_to(_column(self.fill, slot.shape), (len(self.fill), *slot.shape))
        return image, np.full(slot.shape, IGNORE_INDEX, np.uint8), problem

    def read_pair(self, slot: Slot) -> Pair:
        """Image (C, *size), mask uint8 class indices."""
        return self.prepare(slot.index) if self.decoded is None else self.decoded[slot.index]

    def prepare(self, index: int) -> Pair:
        """Image and mask, up to the steps that differ from epoch to epoch."""
        return self.decode(self.split.records[index], self.preprocess, self.channels, self.class_map, self.fit_masks)

    def cache(self) -> None:
        """Decode all samples once, unless an earlier run has done so. Raises DataError if the disk is full."""
        seen, spacings = self.preprocess, self.split.spacings
        how = (seen.image_size, seen.scale, seen.detect_unit_range, seen.draft, self.channels)
        resampled = (seen.spacing, seen.clip, seen.standardize, None if spacings is None else spacings.tobytes())
        content = self.split.records.digest
        classes = (self.class_map.values, self.class_map.ignore_value)
        key = content and digest(type(self).__name__, how, resampled, content, *classes, self.split.bad)
        self.decoded = decode_once(self._prepare_good, len(self), key, self.config.skipped_errors)

    def _prepare_good(self, index: int) -> Pair:
        if index in self.split.bad:
            raise DataError(self.split.bad[index])
        return self.prepare(index)


class TrainingDataset(SegmentationDataset):
    """Masks follow the image to the network's input size; crops, then padding to the slot's shape.

    A crop and the draw of an augmentation, which is done later, are functions of (seed, epoch, index).
    """

    fit_masks = True

    def read_pair(self, slot: Slot) -> Pair:
        crop_size = self.config.crop_size
        if crop_size is None:
            return super().read_pair(slot)
        rng = np.random.default_rng([self.config.seed, slot.epoch, slot.index, 1])
        is_volume, locations = self.split.records.dims == 3, self.split.class_locations.get(slot.index)
        if self.decoded is None and locations is not None and not is_volume:
            record = self.split.records[slot.index]
            image, values = random_window(record, self.preprocess, self.channels, crop_size, locations, rng)
            return image, self.class_map.encode(values, record["name"])
        image, mask = super().read_pair(slot)
        if is_volume:  # where its classes are is known: of the file no more is read than the crop
            own_size = tuple(self.split.sizes[slot.index].tolist())
            window = crop_around(locations or [], own_size, mask.shape, crop_size, rng)
        else:
            window = crop_window(mask, crop_size, rng)
        part = tuple(slice(*side) for side in window)
        return image[(slice(None), *part)], mask[part]

    def _spacing(self, index: int) -> tuple[float, ...] | None:
        """(z, y, x) in mm of a volume as the network sees it, None of images."""
        if self.split.spacings is None:
            return None
        return self.preprocess.spacing or tuple(self.split.spacings[index].tolist())

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Tensor, Draw, tuple[int, int], str | None]:
        image, mask, problem = self.read(slot)
        if mask.shape != slot.shape:
            image, mask = self._pad(image, mask, slot.shape)
        drawn = draw(
            (slot.epoch, slot.index),
            strength=self.config.augment,
            seed=self.config.seed,
            size=slot.shape,
            channels=self.channels,
            spacing=self._spacing(slot.index),
        )
        return _tensor(image), _tensor(mask), drawn, (slot.epoch, slot.index), problem

    def _pad(self, image: np.ndarray, mask: np.ndarray, shape: tuple[int, ...]) -> Pair:
        fill, inside = self.fill.round() if image.dtype == np.uint8 else self.fill, tuple(map(slice, mask.shape))
        padded = np.full((len(image), *shape), _column(fill, shape), dtype=image.dtype)
        padded[(slice(None), *inside)] = image
        padded_mask = np.full(shape, IGNORE_INDEX, dtype=np.uint8)
        padded_mask[inside] = mask
        return padded, padded_mask


class EvaluationDataset(SegmentationDataset):
    """Nothing is padded or cropped, and masks keep their own size: scores are those of the files."""

    fit_masks = False

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Tensor, int, str | None]:
        image, mask, problem = self.read(slot)
        return _tensor(image), _tensor(mask), slot.index, problem


def _column(values: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """(C,) -> (C, 1, 1, ...), to go with images of `size`."""
    return values.reshape(-1, *(1,) * len(size))


def _tensor(array: np.ndarray) -> Tensor:
    """A tensor of the array; a copy where the array is mapped from a file, which must not be written to."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def collate_training(samples: list[tuple]) -> dict[str, Any]:
    """A batch for `augment`.

    images (B, C, *size), masks (B, *size) uint8, draws: [Draw, ...], numbers: `pack_draws` of them, keys:
    [(epoch, index), ...], problems: of the samples left out.
    """
    images, masks, draws, keys, problems = zip(*samples, strict=True)
    drawn = {"draws": list(draws), "numbers": pack_draws(draws, len(images[0])), "keys": list(keys)}
    return {"images": torch.stack(images), "masks": torch.stack(masks)} | drawn | _problems(problems)


def collate_evaluation(samples: list[tuple]) -> dict[str, Any]:
    """images (B, C, *size), masks: list of uint8 of any sizes, indices: [index, ...], problems as above."""
    images, masks, indices, problems = zip(*samples, strict=True)
    return {"images": torch.stack(images), "masks": list(masks), "indices": list(indices)} | _problems(problems)


def _problems(problems: Sequence[str | None]) -> dict[str, list[str]]:
    return {"problems": [problem for problem in problems if problem is not None]}
