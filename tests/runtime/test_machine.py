"""What a process may use of its machine or container: CPUs and memory; and the error when memory runs out."""

import os
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from support.launches import PROGRAMS, launch

from runtime import machine
from runtime.errors import MemoryShortage
from runtime.machine import is_out_of_memory, memory_shortage

STAT = "anon 7\ninactive_file {}\nactive_file 3\n"
STAT_1 = "inactive_file 1\ntotal_inactive_file {}\n"  # of version 1


def write(folder: Path, group: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A file that names the groups of a process, and a folder of control groups."""
    for name, text in {"cgroup": group, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")
    return folder / "cgroup", folder


def memory_of(folder: str, limit: str, usage: int, cache: int) -> dict[str, str]:
    """The files of a group of version 2."""
    values = {"memory.max": limit, "memory.current": str(usage), "memory.stat": STAT.format(cache)}
    return {f"{folder}{name}": value for name, value in values.items()}


OF_VERSION_1 = {
    "memory/a/memory.limit_in_bytes": "800",
    "memory/a/memory.usage_in_bytes": "500",
    "memory/a/memory.stat": STAT_1.format(30),
}
JOB = memory_of("s/j/k/", "max", 100, 0) | memory_of("s/j/", "900", 300, 20)


@pytest.mark.parametrize(
    ("group", "files", "free"),
    [
        ("0::/", memory_of("", "1000", 700, 50), 350),
        ("0::/s/j/k", JOB | memory_of("s/", "5000", 4500, 0), 500),
        ("0::/s/j/k", JOB | memory_of("s/", "5000", 4000, 0), 620),
        ("11:cpu,cpuacct:/b\n9:memory:/a\n0::/other", OF_VERSION_1, 330),
        ("9:hugetlb,memory:/a", OF_VERSION_1, 330),
        ("11:name=memory:/a", OF_VERSION_1, None),
        ("0::/gone", {}, None),
    ],
)
def test_a_container_has_the_memory_that_the_tightest_group_around_it_leaves(tmp_path, group, files, free):
    assert machine.group_bytes(*write(tmp_path, group, files)) == free


@pytest.mark.parametrize(
    ("group", "files", "cpus"),
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, 2.5),
        ("0::/a/b", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "250000 100000"}, 0.5),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3.0),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("4:memory:/a", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_a_container_has_the_cpus_of_the_tightest_group_around_it(tmp_path, group, files, cpus):
    assert machine.group_cpus(*write(tmp_path, group, files)) == cpus


@pytest.mark.parametrize(("group_bytes", "expected"), [(None, 3000), (2000, 1000), (9000, 3000), (0, 0)])
def test_processes_of_a_machine_share_its_free_memory(monkeypatch, group_bytes, expected):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 6000}))
    monkeypatch.setattr(machine, "group_bytes", lambda: group_bytes)
    assert machine.available_bytes() == expected


@pytest.mark.parametrize(
    ("device", "cpus", "processes", "workers"),
    [
        ("cpu", 2, 1, 1),
        ("cpu", 2, 2, 0),
        ("cuda", 8, 1, 8),
        ("cuda", 8, 4, 2),
        ("cuda", 2, 4, 1),
        ("cuda", 64, 1, 16),
    ],
)
def test_loaders_share_the_cpus_with_other_processes(monkeypatch, device, cpus, processes, workers):
    monkeypatch.setattr(machine, "available_cpus", lambda: cpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert machine.default_workers(torch.device(device)) == workers


def test_the_cpus_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 9} if process == 0 else set(), raising=False)
    monkeypatch.setattr(machine, "group_cpus", lambda: None)
    assert machine.available_cpus() == 3
    for limit, count in ((5.0, 3), (2.5, 2), (0.5, 1)):
        monkeypatch.setattr(machine, "group_cpus", lambda limit=limit: limit)
        assert machine.available_cpus() == count
    monkeypatch.setattr(machine, "group_cpus", lambda: None)
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert machine.available_cpus() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.available_cpus() == 1


@pytest.mark.parametrize(
    ("cpus", "others", "threads", "used"),
    [(2, 0.1, 2, 2), (2, 0.9, 2, 1), (2, 2.0, 2, 1), (8, 3.0, 8, 5), (8, 3.0, 4, 4), (8, 0.0, 1, 1)],
)
def test_a_run_by_the_clock_computes_on_as_many_threads_as_other_programs_leave_cores(
    monkeypatch, cpus, others, threads, used
):
    seconds = SimpleNamespace(now=0.0)
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    monkeypatch.setattr(time, "monotonic", lambda: seconds.now)
    monkeypatch.setattr(
        psutil, "cpu_times", lambda: SimpleNamespace(user=0.9 * others * seconds.now, system=0.1 * others * seconds.now)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    cores = machine.IdleCores()
    try:
        for seconds.now in (10.0, 11.0, 20.0):
            cores.use()
            assert torch.get_num_threads() == used
    finally:
        torch.set_num_threads(before)


def test_the_peak_of_memory_is_not_held_by_an_error():
    class Tensors(list):
        """Something that can be watched."""

    watched = []

    def fill() -> None:
        tensors = Tensors([1])
        watched.append(weakref.ref(tensors))
        raise MemoryError("full")

    with pytest.raises(MemoryShortage) as caught, memory_shortage("a", "b"):
        fill()
    assert watched[0]() is None
    assert str(caught.value) == "a: does not fit into memory; b (full)"


SHORTAGES = [  # as they were reported
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB"),
    torch.OutOfMemoryError(),
    getattr(torch, "AcceleratorError", RuntimeError)(
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
    ),
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
def test_freed_memory_is_kept_for_the_next_tensor_until_it_is_given_back():
    kept, given_back = count_page_faults("cpu")
    usual, _ = count_page_faults("cuda")
    assert kept < usual / 10
    assert given_back > usual / 20  # one tensor, not ten


def count_page_faults(device: str) -> tuple[int, int]:
    """The pages that are cleared while a process makes tensors, which is told that this device computes."""
    result = launch(PROGRAMS / "count_page_faults.py", device)
    assert result.returncode == 0, result.stderr
    kept, given_back = map(int, result.stdout.split())
    return kept, given_back
