"""The cut of volumes into slabs, one for each process of a group, and what these processes exchange."""

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

from data_utils.target import Target
from runtime.distributed import COLLECTIVE_TIMEOUT
from runtime.errors import LaunchError
from unet.blocks import channels_last

FIRST_AXIS = 2  # the first spatial axis of (B, C, *spatial)


@dataclass(frozen=True)
class Slabs:
    """The slabs of a volume, and the place of this process among the processes that share it.

    Process `rank` of a launch has slab `rank % size` of the volumes of group `rank // size`, so neighbors on one
    machine share a volume.

    Args:
        size: the number of processes that share a volume.
        slab: the number of this process's slab in the volume, from 0.
        group: the number of this process's group, from 0.
        divisor: the factor by which the first axis is divided on the way to the lowest level.
    """

    size: int = 1
    slab: int = 0
    group: int = 0
    divisor: int = 1

    @classmethod
    def of_process(cls, process: int, processes: int, size: int, divisor: int = 1) -> "Slabs":
        """The place of one of `processes`. Raises LaunchError if `processes` is not a multiple of `size`."""
        if processes % size:
            raise LaunchError(
                f"--processes-per-volume {size} needs a multiple of {size} processes, but {processes} were started;"
                f" give --num_processes {math.ceil(processes / size) * size}"
            )
        return cls(size, process % size, process // size, divisor)

    def rows(self, length: int) -> slice:
        """The range of this process's slab in a volume whose first side is `length`; the last slab takes the rest."""
        strides = length // self.divisor
        start = strides * self.slab // self.size * self.divisor
        end = strides * (self.slab + 1) // self.size * self.divisor
        is_last = self.slab == self.size - 1
        return slice(start, length if is_last else end)

    def largest(self, length: int) -> int:
        """The number of rows of the largest slab of a volume whose first side is `length`."""
        strides = length // self.divisor
        most_strides = math.ceil(strides / self.size)
        return most_strides * self.divisor + length % self.divisor

    def cut(self, images: Tensor) -> Tensor:
        """This process's slab of images (B, C, *spatial)."""
        return laid_out_like(images, images[:, :, self.rows(images.shape[FIRST_AXIS])])

    def cut_targets(self, targets: Target) -> Target:
        """This process's slab of targets (B, *spatial)."""
        rows = self.rows(targets.shape[1])
        return targets.strip(rows.start, rows.stop)

    def sum(self, values: Tensor) -> Tensor:
        """The sum of the values over the processes that share a volume; no gradient."""
        total = values.detach().clone()
        dist.all_reduce(total, group=_process_group(self.size))
        return total

    def exchange(self, to_previous: Tensor, to_next: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Exchange tensors with the processes of the previous and the next slab.

        Returns:
            The tensors from the previous and from the next slab, each with the shape of the tensor sent there; None,
            and nothing is sent, at an end of the volume.
        """
        group = _process_group(self.size)
        operations = []
        results: list[Tensor | None] = []
        for outgoing, step in ((to_previous, -1), (to_next, 1)):
            if not 0 <= self.slab + step < self.size:
                results.append(None)
                continue
            neighbor = self.group * self.size + self.slab + step
            received = torch.empty_like(outgoing, memory_format=torch.contiguous_format)
            operations.append(dist.P2POp(dist.isend, outgoing.contiguous(), neighbor, group))
            operations.append(dist.P2POp(dist.irecv, received, neighbor, group))
            results.append(received)
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        from_previous, from_next = results
        return from_previous, from_next


def laid_out_like(x: Tensor, values: Tensor) -> Tensor:
    """The values in the memory format of x: it determines the kernels."""
    return values.contiguous() if x.is_contiguous() else channels_last(values)


@cache
def _process_group(size: int) -> dist.ProcessGroup:
    """This process's group of `size` neighbors; all processes must call this at the same time."""
    group, _ = dist.new_subgroups(size, timeout=COLLECTIVE_TIMEOUT)
    return group
