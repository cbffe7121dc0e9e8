"""The processes of a launch as a mesh: each group shares a volume, and each of its processes has one slab."""

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.distributed import COLLECTIVE_TIMEOUT
from runtime.errors import LaunchError


@dataclass(frozen=True)
class Mesh:
    """The position of a process among the processes that share a volume.

    Process `rank` of a launch has slab `rank % size` of the volumes of group `rank // size`, so neighbors on one
    machine share a volume.

    Args:
        size: the number of processes that share a volume.
        slab: the number of this process's slab in the volume, from 0.
        group: the number of this process's group, from 0.
    """

    size: int = 1
    slab: int = 0
    group: int = 0

    @classmethod
    def from_process(cls, process: int, processes: int, size: int) -> "Mesh":
        """The position of one of `processes`. Raises LaunchError if `processes` is not a multiple of `size`."""
        if processes % size:
            raise LaunchError(
                f"--processes-per-volume {size} needs a multiple of {size} processes, but {processes} were started;"
                f" give --num_processes {math.ceil(processes / size) * size}"
            )
        return cls(size, process % size, process // size)

    @property
    def is_first(self) -> bool:
        """Whether this process has the first slab of its volume."""
        return self.slab == 0

    @property
    def is_last(self) -> bool:
        """Whether this process has the last slab of its volume."""
        return self.slab == self.size - 1

    @property
    def process_group(self) -> dist.ProcessGroup:
        """The processes that share a volume with this one. The first use must be by all processes at the same time."""
        return _process_group(self.size)

    def sum(self, values: Tensor) -> Tensor:
        """The sum of the values over the processes that share a volume; no gradient."""
        total = values.detach().clone()
        dist.all_reduce(total, group=self.process_group)
        return total

    def exchange(self, to_previous: Tensor | None, to_next: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Exchange tensors with the processes of the previous and the next slab.

        At an end of the volume there is no neighbor: the tensors sent there and received from there are None.

        Returns:
            The tensors from the previous and from the next slab, each with the shape of the tensor sent there.
        """
        group = self.process_group
        rank = self.group * self.size + self.slab
        operations = []
        results: list[Tensor | None] = []
        for outgoing, neighbor in ((to_previous, rank - 1), (to_next, rank + 1)):
            if outgoing is None:
                results.append(None)
                continue
            received = torch.empty_like(outgoing, memory_format=torch.contiguous_format)
            operations.append(dist.P2POp(dist.isend, outgoing.contiguous(), neighbor, group))
            operations.append(dist.P2POp(dist.irecv, received, neighbor, group))
            results.append(received)
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        from_previous, from_next = results
        return from_previous, from_next


@cache
def _process_group(size: int) -> dist.ProcessGroup:
    """This process's group of `size` neighbors; all processes must call this at the same time."""
    group, _ = dist.new_subgroups(size, timeout=COLLECTIVE_TIMEOUT)
    return group
