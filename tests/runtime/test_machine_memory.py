"""The machine's memory: what is free, what is kept for new tensors, and the error when it runs out.

Modules: runtime/memory.py.
"""

import sys
import weakref

import pytest
import torch
from support.launches import PROGRAMS, launch

from runtime import errors
from runtime.memory import is_out_of_memory, memory_shortage


def test_the_peak_of_memory_is_not_held_by_an_error():
    class Tensors(list):
        """Something that can be watched."""

    watched = []

    def fill() -> None:
        tensors = Tensors([1])
        watched.append(weakref.ref(tensors))
        raise MemoryError("full")

    with pytest.raises(errors.MemoryShortage) as caught, memory_shortage("a", "b"):
        fill()
    assert watched[0]() is None
    assert str(caught.value) == "a: does not fit into memory; b (full)"


SHORTAGES = [  # as they were reported
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB"),
    torch.OutOfMemoryError(),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("GET was unable to find an engine to execute this computation"),
    RuntimeError("FIND was unable to find an engine to execute this computation"),
    RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("MPS backend out of memory (MPS allocated: 17.50 GB, max allowed: 18.13 GB)."),
    torch.distributed.DistBackendError("NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"),
    torch.distributed.DistBackendError("NCCL error: unhandled cuda error\nFailed to CUDA calloc 6291456 bytes"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: Error code 12"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory: you tried to allocate"),
    RuntimeError("std::bad_alloc"),
    MemoryError(),
]
OTHERS = [
    RuntimeError("a bug"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
    torch.distributed.DistBackendError("NCCL error: remote process exited or there was a network error"),
    ValueError("out of memory"),
]


@pytest.mark.parametrize("error", [*SHORTAGES, *OTHERS], ids=lambda error: f"{type(error).__name__}: {error}"[:60])
def test_a_shortage_is_told_by_the_type_or_the_text_of_an_error_of_torch(error):
    assert is_out_of_memory(error) is (error in SHORTAGES)


def test_the_error_of_a_cpu_whose_memory_runs_out_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
def test_freed_memory_is_kept_for_the_next_tensor():
    assert count_page_faults("cpu") < count_page_faults("cuda") / 10


def count_page_faults(device: str) -> int:
    """The pages that are cleared while a process makes tensors, which is told that this device computes."""
    result = launch(PROGRAMS / "count_page_faults.py", device)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)
