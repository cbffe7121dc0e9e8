"""Print how many pages the system clears for ten tensors of 38 MB, after `keep_freed_memory` for the device given.

And then for one, after the memory was given back.
"""

import resource
import sys

import torch

from runtime.machine import give_back_freed_memory, keep_freed_memory

FLOATS = 9 * 2**20  # more than the 32 MB up to which glibc itself learns to keep what is freed

keep_freed_memory(torch.device(sys.argv[1]))
for _ in range(20):  # until the small blocks that are cut off beside are many enough
    torch.ones(FLOATS)


def count_faults(tensors: int) -> int:
    """The pages that are cleared while tensors are made and freed, one after another."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(tensors):
        torch.ones(FLOATS)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


print(count_faults(10))
give_back_freed_memory()
print(count_faults(1))
