"""How a global batch is cut into micro-batches."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import DataLoader

from data_utils.loading.augmentation import Recolor, augment
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.dataset import TrainingBatch
from runtime.device import upload
from runtime.errors import SettingsError
from runtime.launch import LaunchProfile
from tasks.target import Target
from train_utils.compilation import compile_recolor
from train_utils.settings.train_settings import TrainSettings
from unet.blocks import channels_last


def split_from_args(args: TrainSettings, profile: LaunchProfile, saved_size: int | None) -> BatchSplit:
    """The batch split that flags and profile ask for; `saved_size` is a micro-batch that has fitted before."""
    size = args.micro_batch_size if isinstance(args.micro_batch_size, int) else None
    accumulation = profile.gradient_accumulation_steps
    groups = profile.processes // args.processes_per_volume  # the processes of a group share each volume
    batch_split = split_batch(args.planned_batch_size, groups, size, accumulation, saved_size)
    return batch_split._replace(processes_per_volume=args.processes_per_volume)


def split_batch(
    batch_size: int,
    groups: int,
    micro_batch_size: int | None,
    accumulation: int | None,
    saved_size: int | None,
) -> BatchSplit:
    """The micro-batches and accumulation steps that hold `batch_size` images over the groups of processes.

    If the size or the accumulation is None, it is derived; a derived micro-batch is never larger than `saved_size`,
    which a resumed run has recorded. Raises SettingsError if a flag and the profile disagree.
    """
    share = math.ceil(batch_size / groups)
    size = micro_batch_size or math.ceil(share / (accumulation or 1))
    is_fixed = bool(micro_batch_size or accumulation)
    if saved_size and not is_fixed:
        size = min(size, saved_size)
    batch_split = BatchSplit(batch_size, groups, size, 1, is_fixed).with_micro_batches(size)
    if micro_batch_size and accumulation and batch_split.accumulation != accumulation:
        raise SettingsError(
            f"--micro-batch-size {size} makes {batch_split.accumulation} accumulation steps of"
            f" --batch-size {batch_size} over {groups} processes, but the launch profile sets {accumulation};"
            " leave out one of them"
        )
    if accumulation:  # with an image in each
        batch_split = batch_split._replace(accumulation=min(accumulation, share))
    return batch_split


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
