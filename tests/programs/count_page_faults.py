"""Print how many pages the system clears for ten tensors of 64 MB, after `keep_freed_memory` for the device given."""

import resource
import sys

import torch

from runtime.memory import keep_freed_memory

keep_freed_memory(torch.device(sys.argv[1]))
for _ in range(20):  # until the small blocks that are cut off beside are many enough
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
