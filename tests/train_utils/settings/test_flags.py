"""The flags of train.py: each has a test of what it does, marked by its name, and says what it takes.

Modules: train_utils/settings/train_settings.py.
"""

import argparse
import ast
from pathlib import Path
from unittest import mock

import pytest

from train_utils.settings import flags as flags_of_train


def all_actions() -> list[argparse.Action]:
    """The flags of a run as argparse has them."""
    actions: list[argparse.Action] = []
    others = {"--help", "--version"}

    def list_actions(parser: argparse.ArgumentParser, *_: object) -> argparse.Namespace:
        actions.extend(action for action in parser._actions if not others & set(action.option_strings))
        raise SystemExit

    with mock.patch.object(flags_of_train.cli.Arguments, "parse_args", list_actions), pytest.raises(SystemExit):
        flags_of_train.parse_args("")
    return actions


def marked_flags(folder: Path) -> list[str]:
    """The flags that the marks of tests in a folder name."""
    names: list[str] = []
    for file in folder.glob("test_*_flags.py"):
        for function in ast.parse(file.read_text(encoding="utf-8")).body:
            for mark in getattr(function, "decorator_list", ()):
                if ast.unparse(mark).startswith("pytest.mark.flags("):
                    names += [argument.value for argument in mark.args]
    return names


def test_every_flag_has_a_test():
    flags = [flag for action in all_actions() for flag in action.option_strings]
    assert set(marked_flags(Path(__file__).parents[2] / "scripts")) == set(flags)


def test_every_flag_says_what_it_takes():
    actions = all_actions()
    assert [action.dest for action in actions if not action.help] == []
    unnamed = [action.dest for action in actions if action.nargs != 0 and not (action.metavar or action.choices)]
    assert unnamed == ["seed", "tracker"]  # which say it themselves
