"""What a Linux control group leaves free: it limits a container or a cluster's job to a part of the machine.

The files of version 2 are described at https://docs.kernel.org/admin-guide/cgroup-v2.html, the files of version 1 at
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html and https://docs.kernel.org/scheduler/sched-bwc.html.
"""

from collections.abc import Iterator
from pathlib import Path

PROCESS = Path("/proc/self/cgroup")  # the groups of this process
MOUNT = Path("/sys/fs/cgroup")


def free_bytes(process: Path = PROCESS, mount: Path = MOUNT) -> int | None:
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


def cpus(process: Path = PROCESS, mount: Path = MOUNT) -> float | None:
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
