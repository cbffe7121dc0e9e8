"""The machine's memory: how much is free, keeping what tensors leave, and a line when it runs out."""

import ctypes
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from runtime.errors import MemoryShortage

# of glibc's malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def keep_freed_memory(device: torch.device) -> None:
    """Where a CPU computes, have glibc keep freed memory for the next tensors.

    Left to itself it maps each block above 32 MB anew, and the system clears it page by page: a sixth of a
    training step, half of what a narrow network takes for an image. The peak is a sixth higher (docs/performance.md).
    """
    if device.type != "cpu" or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def available_bytes() -> int:
    """This process's share of the machine's free memory."""
    return psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextmanager
def memory_shortage(what: str, remedy: str) -> Iterator[None]:
    """Within, running out of memory, a GPU's or the machine's, becomes a MemoryShortage of one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # torch has a type of its own for GPUs only
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold what the memory is full of
        raise MemoryShortage(f"{what}: does not fit into memory; {remedy}") from None
