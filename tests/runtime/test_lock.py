"""Two runs never write into one folder; the lock between them is gone when its process is, however that ended."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

from runtime.errors import SettingsError
from runtime.lock import LOCK, lock_folder, locks_released

HOLDER = """
import sys, time
from pathlib import Path
from runtime.lock import lock_folder
lock_folder(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(600)
"""


def test_a_folder_in_use_is_refused_with_who_uses_it_and_free_after_a_kill(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "locked\n"
        for _ in range(2):  # to be refused changes nothing
            with pytest.raises(SettingsError, match=f"in use by process {holder.pid} on .*, started 20"):
                lock_folder(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait(timeout=20)
    with locks_released():
        lock_folder(tmp_path)
        assert f"process {os.getpid()} on" in (tmp_path / LOCK).read_text()


def test_an_error_frees_the_folder_and_leaves_it_empty(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), locks_released():
            lock_folder(tmp_path)
            raise KeyError("a bug")
        assert not any(tmp_path.iterdir())


def test_where_the_file_system_knows_no_locks_there_is_none(tmp_path, monkeypatch):
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", refuse)
    with locks_released():
        lock_folder(tmp_path)
        lock_folder(tmp_path)
