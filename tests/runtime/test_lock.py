"""Two runs never write into one folder; the lock between them is gone when its process is, however that ended."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from filelock import FileLock
from support.launches import ROOT

from runtime.console import say_once
from runtime.errors import SettingsError
from runtime.files import WITHOUT_LOCKS, complete_folder, replace_file
from runtime.lock import LOCK, file_lock, lock_folder, locks_released

HOLDER = """
import sys, time
from pathlib import Path
from runtime.lock import lock_folder
lock_folder(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path) -> Iterator[subprocess.Popen]:
    """A process that has locked `tmp_path`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_folder_in_use_is_free_after_its_owner_was_killed(tmp_path, holder):
    for _ in range(2):  # to be refused changes nothing
        with pytest.raises(SettingsError, match=f"in use by process {holder.pid} on .*, started 20"):
            lock_folder(tmp_path)
    holder.kill()
    holder.wait(timeout=20)
    with locks_released():
        lock_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "owner"),
    [
        (b"", "another run"),
        (b"a run\nmore\n", "a run"),
        (b"x" * 300, "x" * 200),
        (b"\xff run", "\N{REPLACEMENT CHARACTER} run"),
    ],
)
def test_the_owner_of_a_folder_is_the_first_line_of_its_lock(tmp_path, content, owner):
    with FileLock(tmp_path / ".lock"):
        (tmp_path / ".lock").write_bytes(content)
        with pytest.raises(SettingsError) as caught:
            lock_folder(tmp_path)
    line = f"--output-dir {tmp_path} is in use by {owner}; wait until that run has ended, or choose another"
    assert str(caught.value) == line


def test_an_error_frees_the_folder_for_others(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), locks_released():
            lock_folder(tmp_path)
            raise KeyError("a bug")
        assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_on_a_file_system_without_locks_all_goes_on_with_a_line_once(tmp_path, monkeypatch, capsys, number):
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    say_once.cache_clear()
    with locks_released():
        lock_folder(tmp_path)
        lock_folder(tmp_path)
    with file_lock(tmp_path / "lock"), replace_file(tmp_path / "a") as file:
        file.write(b"a")
    with complete_folder(tmp_path / "folder") as folder:
        (folder / "b").write_bytes(b"b")
    assert (tmp_path / "a").read_bytes() == b"a"
    assert (tmp_path / "folder" / "b").read_bytes() == b"b"
    assert capsys.readouterr().out.splitlines() == [WITHOUT_LOCKS]


def test_all_folders_are_free_again_also_one_whose_lock_was_removed(tmp_path):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    with locks_released():
        for folder in folders:
            lock_folder(folder)
        (folders[2] / LOCK).unlink()
    assert not any(any(folder.iterdir()) for folder in folders)
    with locks_released():
        for folder in folders:
            lock_folder(folder)  # nobody has it
