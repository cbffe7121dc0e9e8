"""Records become tensors: images as the network takes them, masks as class indices."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from data_utils.batching import Slot
from runtime.cache import digest
from data_utils.crops import crop_around, crop_window, resize_mask
from data_utils.decoded import Decoded, decode_once
from data_utils.decoding import image_size_of
from runtime.errors import DataError
from data_utils.inspection import other_size
from data_utils.large import Crops, read_window
from data_utils.masks import IGNORE, MaskClasses, read_mask


class SegmentationDataset(Dataset):
    """Image and mask of a slot, decoded and resized; everything else is done in batches on the device.

    Args:
        records: any sequence of {"image", "mask", "name"}.
        read_image: (source, name) -> (C, h, w) array at the network's input size.
        classes: what mask values mean.
        fill: (C,) pixel value of padding.
        bad: index -> what is wrong, of samples known to be unusable.
        skip: errors in reading that make a sample a filler, fill all over and wholly ignored, so that the order of
            all others stays; no error does by default.
    """

    def __init__(
        self,
        records: Sequence[dict],
        read_image: Callable[..., np.ndarray],
        classes: MaskClasses,
        *,
        fill: Sequence[float] = (),
        bad: Mapping[int, str] | None = None,
        skip: tuple[type[Exception], ...] = (),
    ) -> None:
        self.records = records
        self.read_image = read_image
        self.classes = classes
        self.fill = np.asarray(fill, dtype=np.float32)
        self.bad = bad or {}
        self.decoded: Decoded | None = None
        self.skip = skip

    def __len__(self) -> int:
        return len(self.records)

    def read(self, slot: Slot) -> tuple[np.ndarray, np.ndarray, str | None]:
        """Image (C, h, w) at the network's input size, mask (H, W) uint8, and what is wrong where both are filled."""
        problem = self.bad.get(slot.index)
        if problem is None:
            try:
                return *self.read_pair(slot), None
            except self.skip as error:
                problem = str(error)
        shape = slot.height, slot.width
        return (
            np.broadcast_to(self.fill[:, None, None], (len(self.fill), *shape)),
            np.full(shape, IGNORE, np.uint8),
            problem,
        )

    def cache(self, key: str, progress: Callable[[Iterable, int, str], Iterable]) -> None:
        """Decode all samples once; `key` stands for what `read_image` does. Raises DataError where there is no room."""
        parts = (type(self).__name__, key, self.records.digest, self.classes.values, self.classes.ignore_value)
        whole = self.records.digest and digest(*parts, self.bad)
        self.decoded = decode_once(self.prepare_good, len(self), whole, self.skip, progress)

    def prepare_good(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """As `prepare`; DataError for samples known to be unusable."""
        if index in self.bad:
            raise DataError(self.bad[index])
        return self.prepare(index)

    def decode(self, index: int) -> tuple[np.ndarray, np.ndarray, str]:
        """Image (C, h, w) at the network's input size, mask values (H, W) or (H, W, 3) at their own, name.

        Raises DataError where the image file has another size than the mask.
        """
        record = self.records[index]
        name = record["name"]
        image, mask = self.read_image(record["image"], name), read_mask(record["mask"], name)
        size = image_size_of(record["image"], f"{name}: image")
        if size != mask.shape[:2]:
            raise DataError(other_size(name, size, mask.shape[:2]).text)
        return image, mask, name

    def read_pair(self, slot: Slot) -> tuple[np.ndarray, np.ndarray]:
        """Image (C, h, w), mask (H, W) uint8 class indices."""
        return self.prepare(slot.index) if self.decoded is None else self.decoded[slot.index]

    def prepare(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Image and mask, before what differs from epoch to epoch."""
        raise NotImplementedError


class TrainingDataset(SegmentationDataset):
    """Masks follow the image to the network's input size; crops, then padding to the slot's shape.

    Args:
        crop_size: (H, W) of a random crop, a function of (seed, epoch, index); None takes the whole image.
        places: index -> some pixels of each class, (n, 2), of images too large to be decoded whole for every crop.
        crops: what reads crops of these.
    """

    def __init__(
        self,
        *args,
        crop_size: tuple[int, int] | None = None,
        seed: int = 0,
        places: Mapping[int, list[np.ndarray]] | None = None,
        crops: Crops | None = None,
        **options,
    ) -> None:
        super().__init__(*args, **options)
        self.crop_size, self.seed = crop_size, seed
        self.places, self.crops = places or {}, crops

    def prepare(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask, name = self.decode(index)
        # the nearest pixels first: the fewer to look up
        return image, self.classes.encode(resize_mask(mask, image.shape[1:]), name)

    def read_pair(self, slot: Slot) -> tuple[np.ndarray, np.ndarray]:
        if self.crop_size is None:
            return super().read_pair(slot)
        rng = np.random.default_rng([self.seed, slot.epoch, slot.index, 1])
        if self.decoded is None and self.crops is not None and slot.index in self.places:
            record, places = self.records[slot.index], self.places[slot.index]
            around = partial(crop_around, places, crop=self.crop_size, rng=rng)
            image, values = read_window(record, self.crops, around)
            return image, self.classes.encode(values, record["name"])
        image, mask = super().read_pair(slot)
        rows, columns = (slice(*part) for part in crop_window(mask, self.crop_size, rng))
        return image[:, rows, columns], mask[rows, columns]

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Tensor, tuple[int, int], str | None]:
        image, mask, problem = self.read(slot)
        if slot.filler:
            mask = np.full_like(mask, IGNORE)
        if mask.shape != (slot.height, slot.width):
            image, mask = self._pad(image, mask, slot.height, slot.width)
        key = (slot.epoch, slot.index)
        return _tensor(image), _tensor(mask), key, problem

    def _pad(self, image: np.ndarray, mask: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        fill = self.fill.round() if image.dtype == np.uint8 else self.fill
        padded = np.empty((len(image), height, width), dtype=image.dtype)
        padded[:] = fill.astype(image.dtype)[:, None, None]
        padded[:, : mask.shape[0], : mask.shape[1]] = image
        padded_mask = np.full((height, width), IGNORE, dtype=np.uint8)
        padded_mask[: mask.shape[0], : mask.shape[1]] = mask
        return padded, padded_mask


class EvaluationDataset(SegmentationDataset):
    """Nothing is padded or cropped, and masks keep their own size: scores are those of the files."""

    def prepare(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask, name = self.decode(index)
        return image, self.classes.encode(mask, name)

    def __getitem__(self, slot: Slot) -> tuple[Tensor, Tensor, int, str | None]:
        image, mask, problem = self.read(slot)
        if slot.filler:
            mask = np.full_like(mask, IGNORE)
        return _tensor(image), _tensor(mask), slot.index, problem


def _tensor(array: np.ndarray) -> Tensor:
    """Copied where it has to be: what is mapped from a file is not to be written to."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def collate_training(samples: list[tuple]) -> dict:
    """images (B, C, H, W), masks (B, H, W) uint8, keys: [(epoch, index), ...], problems: of the samples left out."""
    images, masks, keys, problems = zip(*samples, strict=True)
    return {"images": torch.stack(images), "masks": torch.stack(masks), "keys": list(keys)} | _problems(problems)


def collate_evaluation(samples: list[tuple]) -> dict:
    """images (B, C, H, W), masks: list of (H, W) uint8 of any sizes, indices: [index, ...], problems as above."""
    images, masks, indices, problems = zip(*samples, strict=True)
    return {"images": torch.stack(images), "masks": list(masks), "indices": list(indices)} | _problems(problems)


def _problems(problems: Sequence[str | None]) -> dict:
    return {"problems": [problem for problem in problems if problem is not None]}
