"""Errors of a user: who prints them, with which exit code, and in how many characters."""

from runtime import errors
from runtime.errors import DataError, one_line


def test_an_error_is_cut_to_its_limit_and_has_a_text():
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 500))) == 300
    assert one_line(ValueError("abc"), 2) == "ab"


def test_who_prints_an_error_and_with_which_exit_code():
    usage = errors.UsageError
    assert usage.exit_code == 2
    for_all = {usage, errors.SettingsError, errors.LaunchError, errors.ModelError, errors.CheckpointError}
    for_all.add(errors.TrainingError)
    alone = {errors.UserError, DataError, errors.ImageError, errors.MemoryShortage, errors.WriteError}
    assert all(kind.seen_by_all for kind in for_all)
    assert not any(kind.seen_by_all for kind in alone)
    assert {kind.exit_code for kind in (for_all | alone) - {usage}} == {1}


def test_an_error_of_a_loader_process_is_the_line_with_which_it_ended():
    traceback = 'Original Traceback (most recent call last):\n  File "a.py", line 3, in load\n'
    line = "a.png: cannot be read (PNG: no such chunk)"
    text = f"Caught DataError in DataLoader worker process 0.\n{traceback}runtime.errors.DataError: {line}\n"
    assert str(DataError(text)) == str(DataError(line)) == line
