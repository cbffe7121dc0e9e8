"""The machine's memory: the free bytes, settings of allocators, and the error if memory runs out."""

import ctypes
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from runtime.control_group import free_bytes
from runtime.errors import MemoryShortage, one_line

# numbers of glibc's malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4

# words in the errors of torch's allocators, and of libraries below them, if memory runs out; in lower case
SHORTAGES = (
    "out of memory",  # allocators of CUDA, HIP, XPU and MPS, CUDA itself, most of NCCL
    "failed to cuda",  # NCCL: "Failed to CUDA calloc 6291456 bytes"
    "alloc_failed",  # CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED
    "allocation_failed",  # cuDNN 9: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
    "unable to find an engine",  # cuDNN, if no kernel's workspace fits into memory
    "unable to find a valid cudnn algorithm",
    "defaultcpuallocator",
    "bad_alloc",  # C++
)


def keep_freed_memory(device: torch.device) -> None:
    """Make glibc keep freed memory for the next tensors, if the device is a CPU.

    By default glibc requests each block above 32 MB from the system, which clears it page by page. That takes a sixth
    of a training step, and half of the time that a narrow network needs for an image. Keeping freed memory raises the
    peak by a sixth (docs/performance.md).
    """
    if device.type != "cpu" or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def available_bytes() -> int:
    """This process's share of the free memory of the machine, or of the container or job that it runs in."""
    available = psutil.virtual_memory().available
    group_bytes = free_bytes()
    if group_bytes is not None:
        available = min(available, group_bytes)
    return available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that a device or the machine has run out of memory; torch has no single type for that.

    cuDNN may find no engine for other reasons too, so a message about a shortage should repeat the error's text.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(shortage in str(error).lower() for shortage in SHORTAGES)


@contextmanager
def memory_shortage(subject: str, remedy: str) -> Iterator[None]:
    """In this context, an error for lack of memory, on a GPU or in the machine, becomes a MemoryShortage."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # the frames hold the tensors that fill the memory
        raise MemoryShortage(f"{subject}: does not fit into memory; {remedy} ({one_line(error, 100)})") from None
