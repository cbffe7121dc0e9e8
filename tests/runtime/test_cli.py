"""Values of flags, and the exit code and the line with which a script ends.

Modules: runtime/cli.py, runtime/script.py.
"""

import argparse
import errno
import multiprocessing
import os
import signal
import sys
import threading
import warnings

import pytest
from support.in_process import parsed
from support.launches import launch

from runtime import VERSION, cli, script
from runtime.cli import Arguments
from runtime.errors import DataError, UsageError
from runtime.script import run_script


@pytest.fixture
def hooks(monkeypatch):
    """The hooks of this process, which stay as they are behind a script."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)


@pytest.fixture
def end_of(monkeypatch, hooks):
    """The exit code of a script whose `main` raises an error; this process goes on."""
    monkeypatch.setattr(script, "_leave", sys.exit)
    monkeypatch.setattr(multiprocessing, "active_children", list)
    monkeypatch.setattr(sys, "argv", ["/somewhere/train.py"])
    handler = signal.getsignal(signal.SIGCHLD)

    def end_of(error: BaseException) -> int:
        def main() -> None:
            raise error

        with pytest.raises(SystemExit) as end:
            run_script(main)
        return end.value.code

    yield end_of
    signal.signal(signal.SIGCHLD, handler)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DataError("no masks"), 1, "train.py: error: no masks\n"),
        (UsageError("no such flag"), 2, "train.py: error: no such flag\n"),
        (KeyboardInterrupt(), 130, "train.py: interrupted\n"),  # as shells have it: 128 and the number of the signal
        (SystemExit(3), 3, ""),
        (PermissionError(errno.EACCES, "No access", "/data/a"), 1, "train.py: error: /data/a: No access\n"),
    ],
    ids=["mistake in data", "mistake in flags", "interruption", "exit", "unread folder"],
)
def test_a_script_ends_with_the_code_of_its_error(end_of, capsys, error, code, line):
    assert end_of(error) == code
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("error", "is_shown"), [(OSError(errno.ENOSPC, "No space left on device"), False), (OSError("a bug"), True)]
)
def test_a_full_disk_in_a_thread_of_tensorboard_is_no_traceback(hooks, capsys, monkeypatch, error, is_shown):
    def main() -> None:
        def write() -> None:
            raise error

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()

    monkeypatch.setattr(script, "_leave", lambda code: None)
    run_script(main)
    assert ("Traceback" in capsys.readouterr().err) == is_shown


@pytest.mark.parametrize(
    ("error", "code", "line", "waited"),
    [
        (UsageError("no such flag"), 2, "", [5]),  # the launcher ends all as soon as one has ended
        (DataError("no masks"), 1, "train.py: error: no masks\n", []),
    ],
    ids=["of all processes", "of one"],
)
def test_an_error_that_all_processes_have_is_left_to_the_first(end_of, capsys, error, code, line, waited, monkeypatch):
    """This process is the second one of two."""
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert end_of(error) == code
    assert capsys.readouterr().err == line
    assert waits == waited


def test_a_lost_process_is_a_one_line_error(end_of, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/fuzz/__main__.py"])
    assert end_of(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")) == 1
    assert capsys.readouterr().err.startswith("fuzz: error: a process that loads images has ended (")


@pytest.mark.parametrize("command", ["compare.py", "review.py --runs", "-m data_utils.pack out", "train.py --dataset"])
def test_a_name_that_is_too_long_is_a_one_line_error(fails_with, command):
    line = "xxx...: the path, or a name in it, is too long; choose a shorter one"
    fails_with(launch(*command.split(), "x" * 300), line, 1)


def test_another_runtime_error_is_a_bug(end_of):
    with pytest.raises(RuntimeError, match="shapes"):
        end_of(RuntimeError("shapes differ"))


@pytest.mark.parametrize("folder", [b"runs/\xff", b"\xfe/run"])
def test_a_run_is_not_written_into_a_folder_that_is_no_text(capsys, folder):
    with pytest.raises(SystemExit) as end:
        parsed("--dataset", "shapes", "--output-dir", os.fsdecode(folder))
    assert end.value.code == 2
    assert "argument --output-dir: " in (line := capsys.readouterr().err)
    assert "is not UTF-8; choose a folder with another name" in line


def test_a_folder_to_write_into_is_absent_or_empty(tmp_path):
    assert cli.empty_folder(str(tmp_path)) == tmp_path
    assert cli.empty_folder(f"{tmp_path}/new") == tmp_path / "new"
    (tmp_path / ".hidden").write_text("")
    with pytest.raises(argparse.ArgumentTypeError):
        cli.empty_folder(str(tmp_path))


def test_a_script_prints_its_version(capsys):
    with pytest.raises(SystemExit) as ended:
        Arguments("").parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"unet-accelerate {VERSION}\n"
