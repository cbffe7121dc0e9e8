"""The micro-batches of each step, augmented on the device."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import DataLoader

from data_utils.loading.augmentation import augment
from data_utils.loading.dataset import TrainingBatch
from data_utils.target import Target
from runtime.device import upload
from runtime.distributed import seed_step
from tasks.step_loss import StepLoss
from train_utils.settings.train_settings import TrainSettings
from train_utils.step_guard import StepGuard
from train_utils.sync_batchnorm import leave_out_of_batch_norm
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
    fill = upload(torch.from_numpy(loader.dataset.fill), loader.device)
    std = upload(torch.from_numpy(loader.dataset.std), loader.device)
    batches: list[TrainingBatch] = []
    for batch in loader:
        batches.append(batch)
        if not batch["slots"][0].ends_step:
            continue
        data_ready(batches)
        indices: list[int] = []
        for micro_batch in batches:
            indices.extend(slot.index for slot in micro_batch["slots"])
        # no variable here holds the micro-batches: their memory is free as soon as the caller lets go of them
        yield [_augment_batch(micro_batch, fill, std) for micro_batch in batches], indices
        batches = []


def _augment_batch(batch: TrainingBatch, fill: Tensor, std: Tensor) -> MicroBatch:
    """A batch of the loader, augmented on the device."""
    images, targets = augment(
        batch["images"],
        batch["targets"],
        batch["augmentations"],
        batch["packed_augmentations"],
        fill=fill,
        std=std,
    )
    return MicroBatch(channels_last(images), targets, is_filler=batch["slots"][0].is_filler)


def add_gradients(
    accelerator: Accelerator,
    model: torch.nn.Module,
    criterion: StepLoss,
    micro_batches: list[MicroBatch],
    counts: Tensor,
    *,
    reduction: dist.Work | None,
) -> Tensor:
    """Add the gradients of this process's micro-batches, and return their share of the step's loss, a scalar.

    The list is emptied, so that the memory of a micro-batch is free when the next one is computed.

    Args:
        counts: the counts of the whole step, by which the terms of the loss are divided.
        reduction: the exchange that adds up the counts over the processes; None for one process.
    """
    loss = torch.zeros((), device=accelerator.device)
    while micro_batches:
        images, targets, is_filler = micro_batches.pop(0)
        leave_out_of_batch_norm(model, is_filler)
        is_last = not micro_batches
        accelerator.sync_gradients = is_last
        with nullcontext() if is_last else accelerator.no_sync(model):
            logits = model(images)
            if reduction is not None:
                # here the counts are needed for the first time; their exchange has overlapped with the forward pass
                reduction.wait()  # the device waits, or the host with gloo
                reduction = None
            share = criterion(logits, targets, counts)
            # `backward` divides by the steps of DeepSpeed, 1 elsewhere; the processes' gradients are averaged
            accelerator.backward(share * accelerator.num_processes * accelerator.gradient_accumulation_steps)
        loss = loss + share.detach()
    return loss


def train_step(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    criterion: StepLoss,
    micro_batches: list[MicroBatch],
    *,
    args: TrainSettings,
    guard: StepGuard,
) -> Tensor:
    """Make one optimizer step on this process's micro-batches, which are taken from the list and queued for the device.

    Returns:
        Whether the step is made, a bool on the device.
    """
    seed_step(args.seed, guard.state.step, accelerator.process_index)  # for dropout
    # The loss is divided by the counts of all micro-batches on all processes, so that it does not depend on their
    # number. The same exchange tells all processes whether one of them was asked to stop, and whether time is over.
    own_counts = sum(criterion.counts(micro_batch.targets) for micro_batch in micro_batches)
    exchanged = torch.cat([own_counts, guard.message(like=own_counts)])
    # these are views, which contain the sums when the exchange is over
    counts, message = exchanged.split([len(own_counts), len(exchanged) - len(own_counts)])
    reduction = dist.all_reduce(exchanged, async_op=True) if accelerator.num_processes > 1 else None
    guard.begin_step()
    loss = add_gradients(accelerator, model, criterion, micro_batches, counts, reduction=reduction)
    loss = accelerator.reduce(loss, "sum")
    grad_norm = accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm or torch.inf)
    is_made = guard.check(loss, grad_norm, message)
    optimizer.step()
    optimizer.zero_grad()
    return is_made
