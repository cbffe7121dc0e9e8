"""Lines on the terminal: of how many processes, and how many texts of a list."""

import time

import pytest

from runtime.console import first_few, say, say_error


@pytest.fixture
def second_process(monkeypatch):
    """This process is the second one of two, and does not wait for the first one to print."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def test_a_process_prints_the_errors_that_it_alone_has_seen(second_process, capsys):
    say("loss 0.3")
    say("out of memory here", every_process=True)
    say_error("no such flag", seen_by_all=True)
    say_error("the disk of this machine is full")
    output = capsys.readouterr()
    assert output.out == "out of memory here\n"
    assert output.err == "the disk of this machine is full\n"


def test_a_list_is_cut_only_where_it_is_longer():
    assert first_few(["a", "b"], 3) == ["a", "b"]
    assert first_few(["a", "b", "c"], 3) == ["a", "b", "c"]
    assert first_few(["a", "b", "c", "d"], 3) == ["a", "b", "c", "..."]
