"""Errors of a user: who prints them, with which exit code, and in how many characters."""

import pytest

from runtime import errors
from runtime.errors import DataError, UsageError, UserError, one_line


@pytest.mark.parametrize(
    ("error", "limit", "line"),
    [
        (ValueError("a\n  b"), 300, "a b"),
        (KeyError(), 300, "KeyError"),
        (ValueError("x" * 500), 300, "x" * 300),
        (ValueError("a" * 280 + " https://host/x?token=secret"), 300, "a" * 280 + " https://host/x"),
    ],
    ids=["two lines", "no text", "a long text", "a secret is not cut but removed"],
)
def test_an_error_takes_one_line_within_its_limit(error, limit, line):
    assert one_line(error, limit) == line


def test_an_error_of_a_loader_process_is_its_last_line():
    wrapped = "Caught DataError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  x\n"
    assert str(DataError(f"{wrapped}runtime.errors.DataError: a.png: is damaged\n")) == "a.png: is damaged"


def test_a_mistake_that_all_processes_see_is_printed_by_the_first_and_that_of_usage_has_a_code_of_its_own():
    kinds = [UserError, *UserError.__subclasses__(), errors.ImageError]
    of_one = {UserError, DataError, errors.ImageError, errors.MemoryShortage, errors.WriteError}
    assert {kind for kind in kinds if not kind.seen_by_all} == of_one
    assert {kind for kind in kinds if kind.exit_code != 1} == {UsageError}
    assert UsageError.exit_code == 2
