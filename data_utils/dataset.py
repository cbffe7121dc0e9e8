"""Records become tensors: images as the network takes them, masks as class indices."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from data_utils.batching import Slot
from data_utils.masks import IGNORE, MaskClasses, read_mask


class SegmentationDataset(Dataset):
    """Image and mask of a slot, decoded and resized; everything else is done in batches on the device.

    Args:
        records: any sequence of {"image", "mask", "name"}.
        read_image: (source, name) -> (C, h, w) array at the network's input size.
        classes: what mask values mean.
        crop_size: (H, W) of a random crop, a function of (seed, epoch, index); None takes the whole image.
        fill: (C,) pixel value of padding.
    """

    def __init__(
        self,
        records: Sequence[dict],
        read_image: Callable[..., np.ndarray],
        classes: MaskClasses,
        *,
        crop_size: tuple[int, int] | None = None,
        fill: Sequence[float] = (),
        seed: int = 0,
    ) -> None:
        self.records = records
        self.read_image = read_image
        self.classes = classes
        self.crop_size = crop_size
        self.fill = fill
        self.seed = seed

    def __len__(self) -> int:
        return len(self.records)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray, str]:
        """One record: image (C, h, w) at the network's input size, mask (H, W) uint8 at its own size, name."""
        record = self.records[index]
        name = record["name"]
        image = self.read_image(record["image"], name)
        return image, self.classes.encode(read_mask(record["mask"], name), name), name


class TrainingDataset(SegmentationDataset):
    """Masks follow the image to the network's input size; crops, then padding to the slot's shape."""

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Tensor, tuple[int, int]]:
        image, mask, _ = self.read(slot.index)
        mask = resize_mask(mask, image.shape[1:])
        if self.crop_size is not None:
            rng = np.random.default_rng([self.seed, slot.epoch, slot.index, 1])
            starts = [
                rng.integers(max(have - want, 0) + 1) for have, want in zip(mask.shape, self.crop_size, strict=True)
            ]
            window = tuple(slice(at, at + want) for at, want in zip(starts, self.crop_size, strict=True))
            image, mask = image[(slice(None), *window)], mask[window]
        if slot.filler:
            mask = np.full_like(mask, IGNORE)
        if mask.shape != (slot.height, slot.width):
            image, mask = self._pad(image, mask, slot.height, slot.width)
        return torch.from_numpy(np.ascontiguousarray(image)), torch.from_numpy(mask.copy()), (slot.epoch, slot.index)

    def _pad(self, image: np.ndarray, mask: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        fill = np.asarray(self.fill, dtype=np.float32)
        fill = fill.round() if image.dtype == np.uint8 else fill
        padded = np.empty((len(image), height, width), dtype=image.dtype)
        padded[:] = fill.astype(image.dtype)[:, None, None]
        padded[:, : mask.shape[0], : mask.shape[1]] = image
        padded_mask = np.full((height, width), IGNORE, dtype=np.uint8)
        padded_mask[: mask.shape[0], : mask.shape[1]] = mask
        return padded, padded_mask


class EvaluationDataset(SegmentationDataset):
    """Nothing is padded or cropped, and masks keep their own size: scores are those of the files."""

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Tensor, int]:
        image, mask, _ = self.read(slot.index)
        if slot.filler:
            mask = np.full_like(mask, IGNORE)
        return torch.from_numpy(image), torch.from_numpy(mask), slot.index


def resize_mask(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(H, W) uint8 -> (*size), each pixel the nearest one's class."""
    if mask.shape == tuple(size):
        return mask
    return np.asarray(Image.fromarray(mask).resize((size[1], size[0]), Image.Resampling.NEAREST))


def collate_training(samples: list[tuple]) -> dict:
    """images (B, C, H, W), masks (B, H, W) uint8, keys: [(epoch, index), ...]."""
    images, masks, keys = zip(*samples, strict=True)
    return {"images": torch.stack(images), "masks": torch.stack(masks), "keys": list(keys)}


def collate_evaluation(samples: list[tuple]) -> dict:
    """images (B, C, H, W), masks: list of (H, W) uint8 of any sizes, indices: [index, ...]."""
    images, masks, indices = zip(*samples, strict=True)
    return {"images": torch.stack(images), "masks": list(masks), "indices": list(indices)}
