"""Errors of a user: who prints them, with which exit code, and in how many characters."""

import pytest

from runtime import errors
from runtime.errors import DataError, one_line


@pytest.mark.parametrize(
    ("error", "limit", "line"),
    [
        (ValueError("a\n  b"), 300, "a b"),
        (KeyError(), 300, "KeyError"),
        (ValueError("x" * 500), 300, "x" * 300),
        (ValueError("abc"), 2, "ab"),
    ],
    ids=["two lines", "no text", "a long text", "a short limit"],
)
def test_an_error_takes_one_line_within_its_limit(error, limit, line):
    assert one_line(error, limit) == line


ERRORS_OF_ALL = [
    errors.UsageError,
    errors.SettingsError,
    errors.LaunchError,
    errors.ModelError,
    errors.CheckpointError,
    errors.TrainingError,
]
ERRORS_OF_ONE = [errors.UserError, DataError, errors.ImageError, errors.MemoryShortage, errors.WriteError]


@pytest.mark.parametrize("kind", ERRORS_OF_ALL)
def test_an_error_that_all_processes_have_is_printed_by_the_first(kind):
    assert kind.seen_by_all


@pytest.mark.parametrize("kind", ERRORS_OF_ONE)
def test_an_error_that_one_process_has_is_printed_by_it(kind):
    assert not kind.seen_by_all


def test_a_mistake_in_flags_has_an_exit_code_of_its_own():
    assert errors.UsageError.exit_code == 2
    assert {kind.exit_code for kind in {*ERRORS_OF_ALL, *ERRORS_OF_ONE} - {errors.UsageError}} == {1}
