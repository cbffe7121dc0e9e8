"""The memory that a control group of Linux leaves free: a container or a job of a cluster may have less than a machine.

Files of version 2: https://docs.kernel.org/admin-guide/cgroup-v2.html, of version 1: .../cgroup-v1/memory.html.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROCESS = Path("/proc/self/cgroup")  # the groups of this process
MOUNT = Path("/sys/fs/cgroup")


class Version(NamedTuple):
    """The names of the files of a version.

    Args:
        mount: the folder that groups lie in.
        limit: the file of the bytes that a group may have.
        usage: the file of those that it has.
        cache: the entry of memory.stat for files that give way to others, which `usage` counts too.
    """

    mount: Path
    limit: str
    usage: str
    cache: str


VERSION_1 = Version(Path("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = Version(Path(), "memory.max", "memory.current", "inactive_file")


def free_bytes(process: Path = PROCESS, mount: Path = MOUNT) -> int | None:
    """The bytes that this process's group, and all that it is part of, leave free; None where none has a limit."""
    free = []
    for version, folder in _groups(process, mount):
        try:
            limit = int((folder / version.limit).read_text())
            usage = int((folder / version.usage).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cache = int(statistics.get(version.cache, 0))
        except (OSError, ValueError):  # no such group is seen from here, or its limit is "max"
            continue
        free.append(max(0, limit - usage + cache))
    return min(free, default=None)


def _groups(process: Path, mount: Path) -> Iterator[tuple[Version, Path]]:
    """The folders of the groups, the inner ones first; a container sees its own at the root."""
    try:
        lines = process.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        version = VERSION_1 if controllers else VERSION_2
        root = mount / version.mount
        group = root / path.lstrip("/")
        while group != root:
            yield version, group
            group = group.parent
        yield version, root
