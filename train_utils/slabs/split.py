"""Volumes that several processes share: whether a network can be trained so, what changes in it, and the loss."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from data_utils.target import Target
from runtime.errors import SettingsError
from runtime.launch import SHARDING
from tasks.step_loss import StepLoss
from tasks.task import Task
from train_utils.compilation import compiles
from train_utils.slabs.slabs import Slabs, cut_input, look_beyond
from unet.model import UNet

FLAG = "--processes-per-volume"
FEWEST_STRIDES = 2  # least length of a slab at the lowest level: neighbors need a border slice, and norms two values


def check_slabs(accelerator: Accelerator, network: UNet, slabs: Slabs, shortest: int, sync_batchnorm: str) -> None:
    """Raise SettingsError if several processes cannot share a volume with this network.

    Args:
        shortest: the smallest first side of the training images at the network's input.
    """
    if slabs.size == 1:
        return
    config = network.config
    kind = accelerator.distributed_type
    problems = {
        "works with the plain U-Net only; give --encoder none": config.encoder is not None,
        f"does not work with {kind.value}; use a profile of DDP": kind in SHARDING,
        "does not work with torch.compile; leave out --dynamo_backend": compiles(accelerator),
        f"does not work with --upsample {config.upsample}; give transpose": config.upsample != "transpose",
        f"does not work with --dropout {config.dropout:g}; give 0": config.dropout > 0,
        "needs batch norm over all slabs; leave out --sync-batchnorm off": (
            sync_batchnorm == "off" and config.norm == "batch"
        ),
    }
    for problem, is_present in problems.items():
        if is_present:
            raise SettingsError(f"{FLAG} {problem}")
    fewest_slices = FEWEST_STRIDES * slabs.divisor * slabs.size
    if shortest < fewest_slices:
        raise SettingsError(
            f"{FLAG} {slabs.size} needs {fewest_slices} or more slices along the first axis,"
            f" {FEWEST_STRIDES * slabs.divisor} for each process, but training images have {shortest}; give a smaller"
            " number or a larger --crop-size"
        )


def split_volumes(network: UNet, task: Task, slabs: Slabs) -> StepLoss:
    """Let the processes of a group share each volume, and return the loss that goes with it.

    The network's layers are changed in place: on slabs they then compute what they would compute on whole volumes.
    """
    if slabs.size == 1:
        return StepLoss(task, network.head_strides)
    for layer in network.modules():
        look_beyond(layer, slabs)
    network.register_forward_pre_hook(partial(cut_input, slabs))
    return SlabLoss(task, network.head_strides, slabs)


class SlabLoss(StepLoss):
    """The loss of a step whose images are cut into slabs; targets are whole, logits cover this process's slab.

    Args:
        strides: see `StepLoss`.
    """

    def __init__(self, task: Task, strides: Sequence[Sequence[int]], slabs: Slabs) -> None:
        super().__init__(task, strides)
        self.slabs = slabs

    def counts(self, targets: Target) -> Tensor:
        """The counts of whole images on the first process of a group; zeros on the others."""
        counts = super().counts(targets)
        return counts if self.slabs.slab == 0 else torch.zeros_like(counts)

    def sums(self, logits: Tensor, targets: Target) -> Tensor:
        """(T,): the sum of each term over whole images, from the slabs of all processes."""
        slab_sums = self._partial(logits, targets)
        flat = torch.cat([values.flatten() for values in slab_sums])
        totals = _SumOverSlabs.apply(flat, self.slabs).split([values.numel() for values in slab_sums])
        image_sums = [total.view_as(values) for total, values in zip(totals, slab_sums, strict=True)]
        return self.task.finish(tuple(image_sums))

    def share_from_rendered(self, logits: Tensor | Sequence[Tensor], targets: Target, counts: Tensor) -> Tensor:
        """This process's share of the loss: an equal part of the value that the processes of a group have computed."""
        return super().share_from_rendered(logits, self.slabs.cut_targets(targets), counts) / self.slabs.size


class _SumOverSlabs(torch.autograd.Function):
    """The sum of values over the processes of a group; all of them use this sum in the same way."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, slabs: Slabs) -> Tensor:
        ctx.size = slabs.size
        return slabs.sum(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.size, None  # the sum of the processes' gradients, which are equal
