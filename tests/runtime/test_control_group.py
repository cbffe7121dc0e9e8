"""Limits of containers and of the jobs of a cluster: memory and processors.

Modules: runtime/control_group.py, runtime/memory.py.
"""

from pathlib import Path

import psutil
import pytest

from runtime import control_group, memory

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
    assert control_group.free_bytes(*write(tmp_path, group, files)) == free


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
    assert control_group.cpus(*write(tmp_path, group, files)) == cpus


def test_a_system_without_groups_has_no_limits(tmp_path):
    assert control_group.free_bytes(tmp_path / "absent", tmp_path) is None


@pytest.mark.parametrize(("group_bytes", "expected"), [(None, 3000), (2000, 1000), (9000, 3000), (0, 0)])
def test_processes_of_a_machine_share_its_free_memory(monkeypatch, group_bytes, expected):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 6000}))
    monkeypatch.setattr(memory, "free_bytes", lambda: group_bytes)
    assert memory.available_bytes() == expected
