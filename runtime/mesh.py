"""The processes of a launch as a mesh: neighbors share a volume, one slab each; others have volumes of their own."""

import math
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.errors import LaunchError

# This limits a step's exchange and the processes' meeting; `on_main` waits for what one process does for all.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Mesh:
    """Where a process stands among those that share a volume.

    Process `rank` of a launch has slab `rank % size` of the volumes of group `rank // size`, so neighbors on one
    machine share a volume.

    Args:
        size: how many processes share a volume.
        slab: which of its slabs this process has, from the first.
        group: which of the groups this process belongs to.
    """

    size: int = 1
    slab: int = 0
    group: int = 0

    @classmethod
    def of_process(cls, process: int, processes: int, size: int) -> "Mesh":
        """The place of one of `processes`; LaunchError where groups of `size` do not hold all of them."""
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
        """The processes that share a volume with this one; at first all must ask for it together."""
        return _process_group(self.size)

    def rank_of(self, slab: int) -> int:
        """The number of the process of this group that has a slab, among all processes."""
        return self.group * self.size + slab

    def sum(self, values: Tensor) -> Tensor:
        """The sum of the values over the processes that share a volume; no gradient."""
        total = values.detach().clone()
        dist.all_reduce(total, group=self.process_group)
        return total

    def exchange(self, to_previous: Tensor | None, to_next: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Send a tensor to the owner of the slab before and of the one behind, and return what they send.

        At the end of a volume there is no neighbor: what is sent there and what comes from there is None. Otherwise
        what comes has the shape of what is sent.
        """
        group = self.process_group
        rank = self.rank_of(self.slab)
        operations = []
        results: list[Tensor | None] = []
        for sent, neighbor in ((to_previous, rank - 1), (to_next, rank + 1)):
            if sent is None:
                results.append(None)
                continue
            received = torch.empty_like(sent, memory_format=torch.contiguous_format)
            operations.append(dist.P2POp(dist.isend, sent.contiguous(), neighbor, group))
            operations.append(dist.P2POp(dist.irecv, received, neighbor, group))
            results.append(received)
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        from_previous, from_next = results
        return from_previous, from_next


@cache
def _process_group(size: int) -> dist.ProcessGroup:
    """This process's group of so many neighbors; all processes must ask for it at the same time."""
    group, _ = dist.new_subgroups(size, timeout=COLLECTIVE_TIMEOUT)
    return group
