"""What is printed: one line whatever a name holds, and no traceback where nobody reads it.

Modules: runtime/console.py, runtime/redact.py, runtime/script.py.
"""

import io
import re
import subprocess
import sys
import time

import pytest
from support.launches import ROOT

from runtime import console
from runtime.console import listing, say, say_error
from runtime.errors import DataError
from runtime.redact import printable

# line breaks of several kinds, commands of terminals, a byte that is no UTF-8
NAME = "a\nb\x1b[2J\x7f\x85\u2028\udcff.png"
SHOWN = r"a\nb\x1b[2J\x7f\x85\u2028\udcff.png"


def test_a_name_of_any_bytes_is_shown_in_one_line():
    assert printable(NAME) == SHOWN
    assert printable("a\tb\nc\x1b", keep="\t\n") == "a\tb\nc\\x1b"


@pytest.mark.parametrize("sign", "\u202a\u202e\u2066\u2069\u200b\u200d\u200f\u2060\ufeff\u061c\xad\U000e0041")
def test_a_sign_that_is_not_seen_or_turns_others_is_shown_by_its_number(sign):
    assert printable(f"a{sign}b") == f"a{sign.encode('unicode_escape').decode()}b"


def test_long_lines_are_cut_but_for_their_end(capsys):
    say("x" * 900_000 + "\ny")
    first, second = capsys.readouterr().out.splitlines()
    assert len(first) == 5000
    assert second == "y"
    assert str(DataError(f"{'x' * 900_000}: give another")).endswith("x: give another")
    assert len(listing(["x" * 900_000, "y"])) == 2003


def test_a_name_of_any_bytes_is_printed_without_commands_of_terminals(capsys):
    say_error(NAME)
    say("two\nlines \udcff\x1b[2J")
    printed = capsys.readouterr()
    assert printed.err == f"{SHOWN}\n"
    assert printed.out == "two\nlines \\udcff\\x1b[2J\n"


PROGRAM = """
import sys
import time
from runtime.script import run_script
from runtime.console import progress_bar, say, say_error
def main():
    for number in range(3000):
        say("a line of output " * 5)
        say_error("a line of errors " * 5)
    if len(sys.argv) > 1:
        raise ValueError("a bug")
    open("end", "w").close()
run_script(main)
"""


@pytest.mark.parametrize("redirect", ["| head -n 1", "2>&1 | head -n 1", ">&-", "2>&-", ">&- 2>&-", "&>/dev/full"])
def test_a_program_goes_on_where_nobody_reads_what_it_prints(tmp_path, redirect):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = f'PYTHONPATH={ROOT} {sys.executable} program.py {redirect}; echo "code ${{PIPESTATUS[0]}}" >code'
    process = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (tmp_path / "end").exists(), process.stderr[-500:]
    assert (tmp_path / "code").read_text() == "code 0\n", process.stderr[-500:]
    assert "Traceback" not in process.stderr
    assert "BrokenPipe" not in process.stderr


def test_a_process_prints_the_errors_that_it_alone_has_seen(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    say("loss 0.3")
    say("out of memory here", every_process=True)
    say_error("no such flag", seen_by_all=True)
    say_error("the disk of this machine is full")
    output = capsys.readouterr()
    assert output.out == "out of memory here\n"
    assert output.err == "the disk of this machine is full\n"


def test_any_text_can_be_printed(monkeypatch):
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii"))
    console.open_streams()
    print("café", flush=True)
    assert output.getvalue() == b"caf\\xe9\n"


@pytest.mark.parametrize(("rank", "is_first"), [(None, True), ("0", True), ("1", False)])
def test_the_process_of_rank_0_prints_for_all(monkeypatch, capsys, rank, is_first):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    say("a line")
    assert list(console.track("ab", 2, "reading")) == ["a", "b"]
    printed = capsys.readouterr()
    assert printed.out == "a line\n" * is_first
    assert ("reading: 100% 2/2" in printed.err) is is_first


def test_a_bar_of_seconds_has_no_rate(capsys):
    with console.progress_bar(4, "training", "s") as bar:
        bar.update(2)
        bar.set_postfix_str("loss 0.5")
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"training: 50% 2/4 s \[\d+:\d+<\d+:\d+, loss 0.5\]", line)


def test_a_bar_in_a_file_is_a_line_for_each_new_state(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    lines = console.progress_bar(3, "a", "step").fp
    for text in ("\ra: 0% 0/30", "\ra: 33% 10/30", "\ra: 33% 10/30", "\n", "\x1b[A\ra: 66% 20/30", "", "a: 33% 10/30"):
        lines.write(text)
    assert stream.getvalue() == "a: 33% 10/30\na: 66% 20/30\na: 33% 10/30\n"
