"""Records become tensors: images as the network takes them, masks as class indices."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from data_utils.analysis.dataset_info import DatasetInfo, Split
from data_utils.image_io.reader import read_mask
from data_utils.image_io.resize import resize_mask
from data_utils.loading.augment import Draw, draw, pack_draws
from data_utils.loading.batch_sampler import Slot
from data_utils.loading.crop import crop_window
from data_utils.loading.decoded_cache import DecodedSplit, decode_once
from data_utils.loading.transforms import check_sizes, network_input, random_window
from runtime.cache import digest
from runtime.errors import DataError
from unet.config import IGNORE_INDEX, Preprocess


class SegmentationDataset(Dataset):
    """Image and mask of a slot, decoded and resized; everything else is done in batches on the device.

    A sample that cannot be read and is to be skipped becomes a filler, the mean all over and wholly ignored, so that
    the order of all others stays.
    """

    def __init__(self, split: Split, info: DatasetInfo, preprocess: Preprocess) -> None:
        self.split, self.config, self.preprocess = split, info.config, preprocess
        self.channels, self.class_map = info.channels, info.class_map
        self.fill = np.asarray(info.normalization.mean, dtype=np.float32)  # (C,) pixel value of padding
        self.decoded: DecodedSplit | None = None

    def __len__(self) -> int:
        return len(self.split)

    def read(self, slot: Slot) -> tuple[np.ndarray, np.ndarray, str | None]:
        """Image (C, h, w) at the network's input size, mask (H, W) uint8, and what is wrong where both are filled."""
        problem = self.split.bad.get(slot.index)
        if problem is None:
            try:
                image, mask = self.read_pair(slot)
                return image, np.full_like(mask, IGNORE_INDEX) if slot.filler else mask, None
            except self.config.skipped_errors as error:
                problem = str(error)
        shape = slot.height, slot.width
        image = np.broadcast_to(self.fill[:, None, None], (len(self.fill), *shape))
        return image, np.full(shape, IGNORE_INDEX, np.uint8), problem

    def read_pair(self, slot: Slot) -> tuple[np.ndarray, np.ndarray]:
        """Image (C, h, w), mask (H, W) uint8 class indices."""
        return self.prepare(slot.index) if self.decoded is None else self.decoded[slot.index]

    @abstractmethod
    def prepare(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Image and mask, before what differs from epoch to epoch."""

    def decode(self, index: int) -> tuple[np.ndarray, np.ndarray, str]:
        """Image (C, h, w) at the network's input size, mask values (H, W) or (H, W, 3) at their own, name.

        Raises DataError where image and mask are not of the same proportions.
        """
        record = self.split.records[index]
        name = record["name"]
        image, size = network_input(record["image"], self.preprocess, self.channels, name)
        mask = read_mask(record["mask"], name)
        check_sizes(name, size, mask.shape[:2])
        return image, mask, name

    def cache(self) -> None:
        """Decode all samples once, or find that an earlier run has. Raises DataError where there is no room."""
        seen = self.preprocess
        how = (seen.image_size, seen.scale, seen.detect_unit_range, seen.draft, self.channels)
        content = self.split.records.digest
        classes = (self.class_map.values, self.class_map.ignore_value)
        key = content and digest(type(self).__name__, str(how), content, *classes, self.split.bad)
        self.decoded = decode_once(self._prepare_good, len(self), key, self.config.skipped_errors)

    def _prepare_good(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if index in self.split.bad:
            raise DataError(self.split.bad[index])
        return self.prepare(index)


class TrainingDataset(SegmentationDataset):
    """Masks follow the image to the network's input size; crops, then padding to the slot's shape.

    A crop and the draw of an augmentation, which is done later, are functions of (seed, epoch, index).
    """

    def prepare(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask, name = self.decode(index)
        # the nearest pixels first: the fewer to look up
        return image, self.class_map.encode(resize_mask(mask, image.shape[1:]), name)

    def read_pair(self, slot: Slot) -> tuple[np.ndarray, np.ndarray]:
        crop_size = self.config.crop_size
        if crop_size is None:
            return super().read_pair(slot)
        rng = np.random.default_rng([self.config.seed, slot.epoch, slot.index, 1])
        if self.decoded is None and slot.index in self.split.class_locations:
            record, locations = self.split.records[slot.index], self.split.class_locations[slot.index]
            image, values = random_window(record, self.preprocess, self.channels, crop_size, locations, rng)
            return image, self.class_map.encode(values, record["name"])
        image, mask = super().read_pair(slot)
        window = tuple(slice(*part) for part in crop_window(mask, crop_size, rng))
        return image[(slice(None), *window)], mask[window]

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Tensor, Draw, tuple[int, int], str | None]:
        image, mask, problem = self.read(slot)
        key, size = (slot.epoch, slot.index), (slot.height, slot.width)
        if mask.shape != size:
            image, mask = self._pad(image, mask, *size)
        config = self.config
        drawn = draw(key, strength=config.augment, seed=config.seed, size=size, channels=self.channels)
        return _tensor(image), _tensor(mask), drawn, key, problem

    def _pad(self, image: np.ndarray, mask: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        fill = self.fill.round() if image.dtype == np.uint8 else self.fill
        padded = np.empty((len(image), height, width), dtype=image.dtype)
        padded[:] = fill.astype(image.dtype)[:, None, None]
        padded[:, : mask.shape[0], : mask.shape[1]] = image
        padded_mask = np.full((height, width), IGNORE_INDEX, dtype=np.uint8)
        padded_mask[: mask.shape[0], : mask.shape[1]] = mask
        return padded, padded_mask


class EvaluationDataset(SegmentationDataset):
    """Nothing is padded or cropped, and masks keep their own size: scores are those of the files."""

    def prepare(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask, name = self.decode(index)
        return image, self.class_map.encode(mask, name)

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Tensor, int, str | None]:
        image, mask, problem = self.read(slot)
        return _tensor(image), _tensor(mask), slot.index, problem


def _tensor(array: np.ndarray) -> Tensor:
    """Copied where it has to be: what is mapped from a file is not to be written to."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def collate_training(samples: list[tuple]) -> dict[str, Any]:
    """A batch for `augment`.

    images (B, C, H, W), masks (B, H, W) uint8, draws: [Draw, ...], numbers: `pack_draws` of them, keys:
    [(epoch, index), ...], problems: of the samples left out.
    """
    images, masks, draws, keys, problems = zip(*samples, strict=True)
    drawn = {"draws": list(draws), "numbers": pack_draws(draws, len(images[0])), "keys": list(keys)}
    return {"images": torch.stack(images), "masks": torch.stack(masks)} | drawn | _problems(problems)


def collate_evaluation(samples: list[tuple]) -> dict[str, Any]:
    """images (B, C, H, W), masks: list of (H, W) uint8 of any sizes, indices: [index, ...], problems as above."""
    images, masks, indices, problems = zip(*samples, strict=True)
    return {"images": torch.stack(images), "masks": list(masks), "indices": list(indices)} | _problems(problems)


def _problems(problems: Sequence[str | None]) -> dict[str, list[str]]:
    return {"problems": [problem for problem in problems if problem is not None]}
