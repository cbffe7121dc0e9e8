"""Two runs never write into one folder; the lock between them is gone when its process is, however that ended."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from filelock import FileLock
from support.launches import ROOT

from runtime.errors import SettingsError
from runtime.files import file_lock, lock_folder, release_folders

HOLDER = """
import sys, time
from pathlib import Path
from runtime.files import lock_folder
lock_folder(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def hold(tmp_path) -> Iterator[subprocess.Popen]:
    """Starts a process that holds the lock of `tmp_path` for some seconds."""
    processes = []

    def start(seconds: int) -> subprocess.Popen:
        command = [sys.executable, "-c", HOLDER, str(tmp_path), str(seconds)]
        processes.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        assert processes[0].stdout.readline() == "locked\n"
        return processes[0]

    yield start
    for process in processes:
        process.kill()
        process.communicate()
    release_folders()


def test_a_folder_in_use_is_free_after_its_owner_was_killed(tmp_path, hold):
    holder = hold(600)
    for _ in range(2):  # to be refused changes nothing
        with pytest.raises(SettingsError, match=f"in use by process {holder.pid} on .*, started 20"):
            lock_folder(tmp_path)
    holder.kill()
    holder.wait(timeout=20)
    lock_folder(tmp_path)


def test_nothing_is_left_of_a_lock_when_its_process_ends(tmp_path, hold):
    assert hold(0).wait(timeout=20) == 0
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "owner"),
    [(b"", "another run"), (b"a run\nmore\n", "a run"), (b"\xff run", "\N{REPLACEMENT CHARACTER} run")],
)
def test_the_owner_of_a_folder_is_the_first_line_of_its_lock(tmp_path, content, owner):
    with FileLock(tmp_path / ".lock"):
        (tmp_path / ".lock").write_bytes(content)
        with pytest.raises(SettingsError, match=f"--output-dir .* is in use by {owner}; wait until"):
            lock_folder(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_on_a_file_system_without_locks_all_goes_on(tmp_path, monkeypatch, number):
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    lock_folder(tmp_path)
    lock_folder(tmp_path)
    with file_lock(tmp_path / "lock"):
        pass
