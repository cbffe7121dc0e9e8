"""Values of flags, and the exit code and the line with which a script ends."""

import argparse
import multiprocessing
import signal
import sys
import warnings

import pytest

from runtime import cli
from runtime.cli import Arguments
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


def test_an_error_that_all_processes_have_is_printed_by_the_first_and_another_by_its_own(end_of, capsys, monkeypatch):
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert end_of(UsageError("no such flag")) == 2
    assert waits == [5]  # the launcher ends all as soon as one has ended
    assert end_of(DataError("no masks")) == 1
    assert capsys.readouterr().err == "train.py: error: no masks\n"
    assert waits == [5]


def test_a_script_prints_to_streams_that_are_there_and_its_warnings_and_bugs_without_secrets(
    end_of, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "stdout", None)

    def main() -> None:
        print("a line")
        assert warnings.formatwarning("a", UserWarningLine, "a.py", 3) == "warning: a\n"
        try:
            raise ValueError("https://me:secret@host/x")
        except ValueError:
            sys.excepthook(*sys.exc_info())

    with pytest.raises(SystemExit) as end:
        cli.run_script(main)
    sys.stdout.close()
    printed = capsys.readouterr()
    assert end.value.code == 0
    assert printed.out == ""
    assert printed.err.startswith("Traceback")
    assert printed.err.endswith("ValueError: https://host/x\n")
    assert not printed.err.endswith("\n\n")


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
    assert cli.warning_line(f"see {url}", UserWarningLine, "a.py", 3) == "warning: see https://host/x\n"
    assert cli.warning_line(f"see {url}", UserWarning, "a.py", 3).startswith(
        "a.py:3: UserWarning: see https://host/x\n"
    )


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (cli.positive_int, {"1": 1, "70": 70}, ["0", "-1", "1.5", ""]),
        (cli.non_negative_int, {"0": 0, "3": 3}, ["-1", "0.5"]),
        (cli.positive_float, {"0.1": 0.1, "3": 3.0, "1e-9": 1e-9}, ["0", "-1", "inf", "nan", "x"]),
        (cli.non_negative_float, {"0": 0.0, "2.5": 2.5}, ["-0.1", "inf", "nan"]),
        (cli.fraction_above_0, {"0.1": 0.1, "0.99": 0.99}, ["0", "1", "20"]),
        (cli.fraction, {"0": 0.0, "0.99": 0.99}, ["1", "-0.1"]),
        (cli.seed_number, {"0": 0, "4294967295": 4294967295}, ["-1", "4294967296", "1.0"]),
        (cli.hub_id, {"me/cells": "me/cells", "cells": "cells"}, ["a/b/c", "me/", "bad name"]),
        (cli.auto_or(cli.positive_int), {"auto": "auto", "2": 2}, ["0", "automatic"]),
    ],
    ids=["natural", "count", "positive", "amount", "share", "fraction", "seed", "hub_id", "auto_or"],
)
def test_a_value_is_taken_within_its_bounds_alone(kind, good, bad):
    assert {text: kind(text) for text in good} == good
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError):
            kind(text)


def test_a_folder_to_write_into_is_absent_or_empty(tmp_path, monkeypatch):
    assert cli.empty_folder(str(tmp_path)) == tmp_path
    assert cli.empty_folder(f"{tmp_path}/new") == tmp_path / "new"
    monkeypatch.chdir(tmp_path)  # it is empty, and yet not what an empty text means
    with pytest.raises(argparse.ArgumentTypeError, match="it is empty"):
        cli.empty_folder("")
    (tmp_path / "file").write_text("")
    for text in (str(tmp_path), f"{tmp_path}/file"):
        with pytest.raises(argparse.ArgumentTypeError):
            cli.empty_folder(text)


@pytest.fixture
def parse(monkeypatch, capsys):
    """The line with which a small program answers a command line."""

    def parse(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["prog.py", *words])
        parser = Arguments("A program.", hints=dict.fromkeys(("lr", "learning-rate"), "use --rate; {script}"))
        parser.add_argument("--rate", type=float, default=0.5, help="how fast")
        parser.add_argument("--size", type=int, nargs=2, metavar=("H", "W"), help="how large")
        parser.add_argument("--name", help="what (default: nothing)", default="x")
        parser.add_argument("--quick", action="store_true", help="soon")
        parser.add_argument("--words", nargs="*", default=[], help="which ones")
        parser.add_argument("--crop", nargs="*", type=cli.positive_int)
        parser.add_argument("--count", type=cli.positive_int)
        parser.add_argument("--input", required=True)
        with pytest.raises(SystemExit) as end:
            parser.parse_args()
        assert end.value.code == (0 if "--help" in words else 2)
        printed = capsys.readouterr()
        return " ".join((printed.out + printed.err).split())

    return parse


def test_a_mistyped_flag_is_named_with_the_one_that_was_meant(parse):
    assert parse("--input", "a", "--rat", "1") == "prog.py: error: unknown argument --rat; did you mean --rate?"
    assert parse("--input", "a", "--xyz").endswith("unknown argument --xyz; see prog.py --help")
    assert parse("--input", "a", "--lr=3").endswith("unknown argument --lr=3; use --rate; prog.py --input a")
    assert parse("--LR", "3", "--input", "a").endswith("unknown argument --LR; use --rate; prog.py --input a")
    assert parse("--lr", "3", "4", "--input", "a").endswith("unknown argument --lr; use --rate; prog.py --input a")
    assert parse("--learning_rate", "3", "--input", "a b").endswith("; use --rate; prog.py --input 'a b'")
    assert parse("--input", "a", "--re", "1").endswith("unknown argument --re; did you mean --rate?")
    assert parse("--input", "a", "--hepl").endswith("unknown argument --hepl; did you mean --help?")
    assert parse("--input", "a", "-m", "x").endswith("unknown argument -m; see prog.py --help")
    line = "is an option of the launcher and stands before the script: accelerate launch --num_processes 2 prog.py"
    assert parse("--input", "a b", "--num_processes", "2").endswith(f"--num_processes {line} --input 'a b'")
    required = "the following arguments are required: --input"
    assert parse("--inptu", "a").endswith(f"{required}; unknown argument --inptu; did you mean --input?")
    assert parse("--inptu", "a", "--raet", "1").endswith("unknown argument --inptu; did you mean --input?")
    assert parse("--rate", "1").endswith(required)
    assert parse("--rate=1", "-5").endswith(required)
    assert parse("--input", "a", "--size", "3").endswith("expected 2 arguments; give --size H W")
    assert parse("--input").endswith("expected one argument; give --input INPUT")


@pytest.mark.parametrize("sides", ["3x40", "3X40", "3*40", "3,40", "3 x 40"])
def test_two_sides_in_one_word_are_told_apart_where_a_flag_takes_several(parse, sides):
    assert parse("--input", "a", "--crop", sides).endswith("; give --crop 3 40")
    assert "; give" not in parse("--input", "a", "--count", sides)


def test_words_that_are_given_are_read_in_place_of_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["prog.py", "\N{EN DASH}y"])
    parser = Arguments("A program.")
    parser.add_argument("--rate")
    assert parser.parse_args(["--rate", "1"]).rate == "1"
    with pytest.raises(SystemExit):
        parser.parse_args(["\N{EM DASH}rate", "1"])
    assert capsys.readouterr().err.endswith("; type --rate\n")


def test_the_help_says_defaults_once(parse):
    text = parse("--help")
    assert "how fast (default: 0.5)" in text
    assert "what (default: nothing)" in text
    assert "how large" in text
    assert text.count("(default: ") == 2
