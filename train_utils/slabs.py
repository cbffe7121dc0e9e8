"""One volume, or one large image, on several processes: each trains on a slab, with the results of a single process.

A slab is a range of the first spatial axis. It begins at a multiple of the factor that the poolings divide by, so that
poolings and transposed convolutions stay inside a slab. Convolutions need the border slices of the neighboring slabs,
norms the sums over all slabs, dropout the mask of the whole volume, and the loss the sums over a whole image.
Evaluation and prediction do not cut images: there the layers work as on one process.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from runtime.errors import SettingsError
from runtime.launch import SHARDING
from tasks.step_loss import StepLoss
from tasks.target import Target
from tasks.task import Task
from train_utils.compilation import compiles
from train_utils.mesh import Mesh
from unet.blocks import channels_last
from unet.model import UNet

FIRST_AXIS = 2  # the first spatial axis of (B, C, *spatial)
FLAG = "--processes-per-volume"
FEWEST_STRIDES = 2  # least length of a slab at the lowest level: neighbors need a border slice, and norms two values


class Slabs:
    """The cut of each volume into slabs, one for each process of a group.

    Args:
        divisor: the factor by which the first axis is divided on the way to the lowest level.

    Attributes:
        length: the first side of the volume that was cut last.
    """

    def __init__(self, mesh: Mesh, divisor: int) -> None:
        self.mesh = mesh
        self.divisor = divisor
        self.length = 0

    def rows(self, length: int) -> slice:
        """The range of this process's slab in a volume whose first side is `length`; the last slab takes the rest."""
        strides = length // self.divisor
        start = strides * self.mesh.slab // self.mesh.size * self.divisor
        end = strides * (self.mesh.slab + 1) // self.mesh.size * self.divisor
        return slice(start, length if self.mesh.is_last else end)

    def largest(self, length: int) -> int:
        """The number of rows of the largest slab of a volume whose first side is `length`."""
        strides = length // self.divisor
        most_strides = math.ceil(strides / self.mesh.size)
        return most_strides * self.divisor + length % self.divisor

    def cut(self, images: Tensor) -> Tensor:
        """This process's slab of images (B, C, *spatial)."""
        self.length = images.shape[FIRST_AXIS]
        return laid_out_like(images, images[:, :, self.rows(self.length)])

    def cut_targets(self, targets: Target) -> Target:
        """This process's slab of targets (B, *spatial)."""
        rows = self.rows(targets.shape[1])
        return targets.strip(rows.start, rows.stop)


def laid_out_like(x: Tensor, values: Tensor) -> Tensor:
    """The values in the memory format of x: it determines the kernels, and the order in which a mask is drawn."""
    return values.contiguous() if x.is_contiguous() else channels_last(values)


def check_slabs(accelerator: Accelerator, model: UNet, mesh: Mesh, shortest: int, sync_batchnorm: str) -> None:
    """Raise SettingsError if several processes cannot share a volume with this network.

    Args:
        shortest: the smallest first side of the training images at the network's input.
    """
    if mesh.size == 1:
        return
    config = model.config
    if config.encoder is not None:
        raise SettingsError(f"{FLAG} works with the plain U-Net only; give --encoder none")
    if accelerator.distributed_type in SHARDING:
        raise SettingsError(f"{FLAG} does not work with {accelerator.distributed_type.value}; use a profile of DDP")
    if compiles(accelerator):
        raise SettingsError(f"{FLAG} does not work with torch.compile; leave out --dynamo_backend")
    if config.upsample == "bilinear_aligned":
        raise SettingsError(f"{FLAG} does not work with --upsample bilinear_aligned, which looks at whole images")
    if sync_batchnorm == "off" and config.norm == "batch":
        raise SettingsError(f"{FLAG} needs batch norm over all slabs; leave out --sync-batchnorm off")
    divisor = config.divisors[0]
    fewest_slices = FEWEST_STRIDES * divisor * mesh.size
    if shortest < fewest_slices:
        raise SettingsError(
            f"{FLAG} {mesh.size} needs {fewest_slices} or more slices along the first axis,"
            f" {FEWEST_STRIDES * divisor} for each process, but training images have {shortest}; give a smaller number"
            " or a larger --crop-size"
        )


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
        return counts if self.slabs.mesh.is_first else torch.zeros_like(counts)

    def sums(self, logits: Tensor, targets: Target) -> Tensor:
        """(T,): the sum of each term over whole images, from the slabs of all processes."""
        slab_sums = self._partial(logits, targets)
        flat = torch.cat([values.flatten() for values in slab_sums])
        totals = _SumOverSlabs.apply(flat, self.slabs.mesh).split([values.numel() for values in slab_sums])
        image_sums = [total.view_as(values) for total, values in zip(totals, slab_sums, strict=True)]
        return self.task.finish(tuple(image_sums))

    def share_from_rendered(self, logits: Tensor | Sequence[Tensor], targets: Target, counts: Tensor) -> Tensor:
        """This process's share of the loss: an equal part of the value that the processes of a group have computed."""
        return super().share_from_rendered(logits, self.slabs.cut_targets(targets), counts) / self.slabs.mesh.size


def new_step_loss(task: Task, strides: Sequence[Sequence[int]], slabs: Slabs) -> StepLoss:
    """The loss of a step on whole images, or on slabs of them."""
    if slabs.mesh.size == 1:
        return StepLoss(task, strides)
    return SlabLoss(task, strides, slabs)


class _SumOverSlabs(torch.autograd.Function):
    """The sum of values over the processes of a group; all of them use this sum in the same way."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mesh: Mesh) -> Tensor:
        ctx.size = mesh.size
        return mesh.sum(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.size, None  # the sum of the processes' gradients, which are equal
