"""Memory limits of containers and of the jobs of a cluster.

Modules: runtime/control_group.py, runtime/memory.py.
"""

from pathlib import Path

import psutil
import pytest

from runtime import control_group, memory

VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def write_group(folder: Path, limit: str, usage: int, cache: int, names: tuple[str, str, str] = VERSION_2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    limit_file, usage_file, cache_name = names
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / usage_file).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{cache_name} {cache}\nactive_file 3\n")


def free(folder: Path, text: str) -> int | None:
    (folder / "cgroup").write_text(text)
    return control_group.free_bytes(folder / "cgroup", folder)


def test_a_container_leaves_free_its_limit_less_its_use_but_the_cache(tmp_path):
    write_group(tmp_path, "1000", 700, 50)
    assert free(tmp_path, "0::/\n") == 350


def test_a_job_has_what_the_tightest_of_the_groups_around_it_leaves(tmp_path):
    write_group(tmp_path / "slurm/job_1/step_0", "max", 100, 0)
    write_group(tmp_path / "slurm/job_1", "900", 300, 20)
    write_group(tmp_path / "slurm", "5000", 4500, 0)
    assert free(tmp_path, "0::/slurm/job_1/step_0\n") == 500
    write_group(tmp_path / "slurm", "5000", 4000, 0)
    assert free(tmp_path, "0::/slurm/job_1/step_0\n") == 620


def test_groups_of_the_first_version_lie_by_their_controller(tmp_path):
    write_group(tmp_path / "memory/docker/a", "800", 500, 30, VERSION_1)
    write_group(tmp_path / "memory/docker/b", "800", 799, 0, VERSION_1)  # of other processes
    assert free(tmp_path, "11:cpu,cpuacct:/docker/b\n9:memory:/docker/a\n0::/other\n") == 330
    assert free(tmp_path, "11:name=memory:/docker/b\n9:memory:/docker/a\n") == 330
    assert free(tmp_path, "9:hugetlb,memory:/docker/a:b/..\n9:hugetlb,memory:/docker/a\n") == 330


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
    (tmp_path / "cgroup").write_text(f"{group}\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert control_group.cpus(tmp_path / "cgroup", tmp_path) == cpus


def test_groups_that_cannot_be_read_say_nothing(tmp_path):
    assert control_group.free_bytes(tmp_path / "absent", tmp_path) is None
    assert control_group.free_bytes(tmp_path, tmp_path) is None  # a folder


@pytest.mark.parametrize("text", ["", "0::/gone\n", "4:pids:/a\n"])
def test_a_group_without_a_limit_says_nothing(tmp_path, text):
    assert free(tmp_path, text) is None
    assert control_group.free_bytes(tmp_path / "missing", tmp_path) is None


@pytest.mark.parametrize(("group_bytes", "expected"), [(None, 3000), (2000, 1000), (9000, 3000), (0, 0)])
def test_processes_of_a_machine_share_its_free_memory(monkeypatch, group_bytes, expected):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 6000}))
    monkeypatch.setattr(memory, "free_bytes", lambda: group_bytes)
    assert memory.available_bytes() == expected
