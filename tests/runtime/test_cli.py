"""Values of flags, and the exit code and the line with which a script ends."""

import argparse
import multiprocessing
import signal
import sys
import warnings

import pytest

from runtime import cli
from runtime.errors import DataError, UsageError, UserWarningLine


@pytest.mark.parametrize("text", ["0/5", "6/5", "1/1", "-1/5", "2", "2/5/7", "a/b"])
def test_a_fold_is_the_first_to_the_last_of_two_or_more(text):
    assert [cli.fold_text(fold) for fold in ("1/2", "2/2", "5/5")] == ["1/2", "2/2", "5/5"]
    with pytest.raises(argparse.ArgumentTypeError, match="is not K/N"):
        cli.fold_text(text)


@pytest.fixture
def end_of(monkeypatch):
    """The exit code of a script whose `main` raises an error; this process goes on."""
    monkeypatch.setattr(cli, "_leave", sys.exit)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(multiprocessing, "active_children", list)
    monkeypatch.setattr(sys, "argv", ["/somewhere/train.py"])
    handler = signal.getsignal(signal.SIGCHLD)

    def end_of(error: BaseException) -> int:
        def main() -> None:
            raise error

        with pytest.raises(SystemExit) as end:
            cli.run_script(main)
        return end.value.code

    yield end_of
    signal.signal(signal.SIGCHLD, handler)


def test_a_script_ends_with_the_code_and_the_line_of_its_error(end_of, capsys):
    assert end_of(DataError("no masks")) == 1
    assert end_of(UsageError("no such flag")) == 2
    assert end_of(KeyboardInterrupt()) == 130  # as shells have it: 128 and the number of the signal
    assert end_of(SystemExit(3)) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["train.py: error: no masks", "train.py: error: no such flag", "train.py: interrupted"]


def test_an_interruption_is_said_by_the_first_process(end_of, capsys, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, line in (("1", ""), ("0", "train.py: interrupted\n")):
        monkeypatch.setenv("RANK", rank)
        assert end_of(KeyboardInterrupt()) == 130
        assert capsys.readouterr().err == line


def test_a_script_that_says_nothing_of_its_end_has_done_well(end_of):
    assert end_of(SystemExit()) == end_of(SystemExit(0)) == 0


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_pipe_that_nobody_reads_ends_a_script_unless_it_is_another_one(end_of, monkeypatch, is_closed):
    monkeypatch.setattr(cli, "leave_closed_streams", lambda: is_closed)
    if is_closed:
        assert end_of(BrokenPipeError()) == 141  # 128 and the number of SIGPIPE
    else:
        with pytest.raises(BrokenPipeError):
            end_of(BrokenPipeError())


def test_a_lost_process_is_one_line_and_another_error_a_bug(end_of, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/fuzz/__main__.py"])
    assert end_of(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")) == 1
    assert capsys.readouterr().err.startswith("fuzz: error: a process that loads images has ended (")
    with pytest.raises(RuntimeError, match="shapes"):
        end_of(RuntimeError("shapes differ"))


def test_a_warning_for_the_user_goes_without_code_and_no_warning_tells_a_password():
    url = "https://me:secret@host/x"
    assert cli._one_line(f"see {url}", UserWarningLine, "a.py", 3) == "warning: see https://host/x\n"
    assert cli._one_line(f"see {url}", UserWarning, "a.py", 3).startswith("a.py:3: UserWarning: see https://host/x\n")
