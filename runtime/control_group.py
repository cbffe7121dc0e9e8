"""What a Linux control group leaves free: it limits a container or a cluster's job to a part of the machine.

The files of version 2 are described at https://docs.kernel.org/admin-guide/cgroup-v2.html, the files of version 1 at
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html and https://docs.kernel.org/scheduler/sched-bwc.html.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROCESS = Path("/proc/self/cgroup")  # the groups of this process
MOUNT = Path("/sys/fs/cgroup")


class Version(NamedTuple):
    """The names of the files in one version of control groups.

    Args:
        limit: the file with the number of bytes that a group may use.
        usage: the file with the number of bytes that a group uses.
        cache: the entry of memory.stat for cached files that can be evicted, which `usage` includes.
    """

    limit: str
    usage: str
    cache: str


VERSION_1 = Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = Version("memory.max", "memory.current", "inactive_file")


def free_bytes(process: Path = PROCESS, mount: Path = MOUNT) -> int | None:
    """The free bytes of this process's group and of all groups around it; None if none of them has a limit."""
    free = []
    for version, folder in _groups("memory", process, mount):
        try:
            limit = int((folder / version.limit).read_text())
            usage = int((folder / version.usage).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cache = int(statistics.get(version.cache, 0))
        except (OSError, ValueError):  # the group is not visible from here, or its limit is "max"
            continue
        free.append(max(0, limit - usage + cache))
    return min(free, default=None)


def cpus(process: Path = PROCESS, mount: Path = MOUNT) -> float | None:
    """How many CPUs this process's group and all groups around it may keep busy; None if none of them has a limit."""
    limits = []
    for version, folder in _groups("cpu", process, mount):
        try:
            if version is VERSION_2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            limit = int(quota) / int(period)
        except (OSError, ValueError):  # the group is not visible from here, or its limit is "max"
            continue
        if limit > 0:  # -1 is no limit
            limits.append(limit)
    return min(limits, default=None)


def _groups(controller: str, process: Path, mount: Path) -> Iterator[tuple[Version, Path]]:
    """The folders of a controller's groups, inner groups first; a container sees its own group at the root."""
    try:
        lines = process.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        version = VERSION_1 if controllers else VERSION_2
        root = mount / controller if controllers else mount
        group = root / path.lstrip("/")
        while group != root:
            yield version, group
            group = group.parent
        yield version, root
