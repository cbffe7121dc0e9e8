"""What this process may use of its machine: CPUs and memory, also in a container; the error if memory runs out."""

import ctypes
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import torch

from runtime.errors import MemoryShortage, one_line

WORKERS_PER_CPU = 4  # loader processes that a CPU can use, since some of them wait for a disk or a network
CORES_EVERY = 5  # seconds between two measurements of idle cores
# control groups: https://docs.kernel.org/admin-guide/cgroup-v2.html, and of version 1
# https://docs.kernel.org/admin-guide/cgroup-v1/memory.html and https://docs.kernel.org/scheduler/sched-bwc.html
PROCESS = Path("/proc/self/cgroup")  # the groups of this process
MOUNT = Path("/sys/fs/cgroup")
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


def available_cpus() -> int:
    """The number of CPUs that this process may use, also in a container or a cluster's job."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    return max(1, math.floor(min(count, group_cpus() or math.inf)))


def cpu_share() -> int:
    """The number of CPUs for each process of this machine, which may be 0."""
    return available_cpus() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def most_workers() -> int:
    """The largest number of loader processes that this process can use; thousands would stop the machine."""
    return WORKERS_PER_CPU * max(1, cpu_share())


def default_workers(device: torch.device) -> int:
    """The number of loader processes: this process's share of the CPUs; at most one if the CPU also computes."""
    share = cpu_share()
    if device.type == "cpu":
        return 1 if share > 1 else 0
    return max(1, min(share, 16))


class IdleCores:
    """The cores that other programs leave idle, for as many threads of this one.

    The threads of an operation wait for each other, and so for any program that holds a core of theirs: an evaluation
    on two threads then takes up to ten times as long as on one.
    """

    def __init__(self) -> None:
        self.most_threads = torch.get_num_threads()
        self._measured_at = time.monotonic()
        self._others = _processor_seconds_of_others()

    def use(self) -> None:
        """Compute on as many threads as cores were idle in the last seconds, on one at least."""
        elapsed = time.monotonic() - self._measured_at
        if self.most_threads == 1 or elapsed < CORES_EVERY:
            return
        others = _processor_seconds_of_others()
        idle = (os.cpu_count() or 1) - (others - self._others) / elapsed
        torch.set_num_threads(max(1, min(self.most_threads, round(idle))))
        self._measured_at += elapsed
        self._others = others


def _processor_seconds_of_others() -> float:
    """The processor seconds of all other programs so far, without those that are nice and yield to this one."""
    machine = psutil.cpu_times()
    seconds = machine.user + machine.system
    program = psutil.Process()
    for process in (program, *program.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a loader process that has just ended
            own = process.cpu_times()
            seconds -= own.user + own.system
    return seconds


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


def give_back_freed_memory() -> None:
    """Have glibc give back the freed memory that `keep_freed_memory` keeps, before other large arrays are made."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if malloc_trim is not None:
        malloc_trim(0)


def available_bytes() -> int:
    """This process's share of the free memory of the machine, or of the container or job that it runs in."""
    available = psutil.virtual_memory().available
    free_in_group = group_bytes()
    if free_in_group is not None:
        available = min(available, free_in_group)
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


def group_bytes(process: Path = PROCESS, mount: Path = MOUNT) -> int | None:
    """The free bytes of this process's group and of all groups around it; None if none of them has a limit."""
    free = []
    for folder in _groups("memory", process, mount):
        limit = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
        usage = _words(folder / "memory.current") or _words(folder / "memory.usage_in_bytes")
        if usage and limit not in ([], ["max"]):
            words = _words(folder / "memory.stat")
            statistics = dict(zip(words[::2], words[1::2], strict=True))
            # cached files, which `usage` includes, can be evicted; version 1 counts those of inner groups as total
            cache = statistics.get("total_inactive_file") or statistics.get("inactive_file", "0")
            free.append(max(0, int(limit[0]) - int(usage[0]) + int(cache)))
    return min(free, default=None)


def group_cpus(process: Path = PROCESS, mount: Path = MOUNT) -> float | None:
    """How many CPUs this process's group and all groups around it may keep busy; None if none of them has a limit."""
    limits = []
    for folder in _groups("cpu", process, mount):
        quota = _words(folder / "cpu.max")
        if not quota:  # version 1
            quota = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if quota and quota[0] not in ("max", "-1"):
            limits.append(int(quota[0]) / int(quota[1]))
    return min(limits, default=None)


def _groups(controller: str, process: Path, mount: Path) -> Iterator[Path]:
    """The folders of a controller's groups, inner groups first; a container sees its own group at the root."""
    if not process.is_file():  # other systems than Linux have none
        return
    for line in process.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = mount
        if controllers:  # version 2 names none
            root = mount / controller
        group = root / path.lstrip("/")
        while group != root:
            yield group
            group = group.parent
        yield root


def _words(file: Path) -> list[str]:
    """The words of a file; none if it is not visible from here."""
    try:
        return file.read_text().split()
    except OSError:
        return []
