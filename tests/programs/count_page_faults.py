"""Print how many pages the system clears for ten tensors of 38 MB, after `keep_freed_memory` for the device given."""

import resource
import sys

import torch

from runtime.machine import keep_freed_memory

FLOATS = 9 * 2**20  # more than the 32 MB up to which glibc itself learns to keep what is freed

keep_freed_memory(torch.device(sys.argv[1]))
for _ in range(20):  # until the small blocks that are cut off beside are many enough
    torch.ones(FLOATS)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(FLOATS)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
