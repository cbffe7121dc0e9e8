"""The micro-batches of each step, augmented on the device."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import DataLoader

from data_utils.loading.augmentation import Recolor, augment
from data_utils.loading.dataset import TrainingBatch
from data_utils.target import Target
from runtime.device import upload
from train_utils.compilation import compile_recolor
from unet.blocks import channels_last


class MicroBatch(NamedTuple):
    """The input of one forward pass of training.

    Args:
        images: (B, C, *size) float32, channels last.
        targets: the targets of these B images, in the types that losses take.
        is_filler: whether the micro-batch only fills a gap, since its process has no image; it counts nowhere.
    """

    images: Tensor
    targets: Target
    is_filler: bool


def training_steps(
    accelerator: Accelerator, loader: DataLoader, data_ready: Callable[[list[TrainingBatch]], None]
) -> Iterator[tuple[list[MicroBatch], list[int]]]:
    """Yield each optimizer step's micro-batches, augmented on the device, and the indices of this process's records.

    Args:
        data_ready: a function that is called with the loader's batches of a step as soon as they are loaded.
    """
    recolor = compile_recolor(accelerator)
    fill = upload(torch.from_numpy(loader.dataset.fill), loader.device)
    std = upload(torch.from_numpy(loader.dataset.std), loader.device)
    for batches in _step_batches(loader):
        data_ready(batches)
        indices: list[int] = []
        for batch in batches:
            indices.extend(slot.index for slot in batch["slots"])
        # no variable here holds the micro-batches: their memory is free as soon as the caller lets go of them
        yield [_augment_batch(batch, fill, std, recolor) for batch in batches], indices


def _step_batches(loader: DataLoader) -> Iterator[list[TrainingBatch]]:
    """The batches of the loader that belong to each optimizer step."""
    batches = []
    for batch in loader:
        batches.append(batch)
        if batch["slots"][0].ends_step:
            yield batches
            batches = []


def _augment_batch(batch: TrainingBatch, fill: Tensor, std: Tensor, recolor: Recolor) -> MicroBatch:
    """A batch of the loader, augmented on the device."""
    images, targets = augment(
        batch["images"],
        batch["targets"],
        batch["augmentations"],
        batch["packed_augmentations"],
        fill=fill,
        std=std,
        recolor=recolor,
    )
    return MicroBatch(channels_last(images), targets, is_filler=batch["slots"][0].is_filler)
