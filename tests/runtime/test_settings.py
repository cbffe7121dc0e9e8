"""Settings that are flags: what each type takes of a command line and of JSON, and what it says otherwise.

Modules: runtime/settings.py, runtime/values.py.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from runtime.settings import add_settings, as_flags, reader, setting
from runtime.values import (
    Amount,
    Count,
    Fraction,
    FractionAbove0,
    Natural,
    OneOf,
    Positive,
    Seed,
    Source,
    checked,
    from_json,
)

Auto = Annotated[str, OneOf(("auto",))]


@dataclass(frozen=True)
class Settings:
    """A setting of each form."""

    name: str = setting("what", group="some", default="x")
    sides: tuple[Natural, Natural] | None = setting("how large", group="some", metavar=("H", "W"))
    weights: tuple[Positive | Auto, ...] = setting("how much", group="some", default=())
    kind: Annotated[str, OneOf(("a", "b"))] | None = setting("which", group="some")
    quick: bool = setting("5% sooner", group="others", default=False)
    deep: bool = setting("deeper", group="others", default=True)
    blocks: Count | None = setting("how many", group="others", const=0)
    file: Path | None = setting("where", group="others")
    model: Source | None = setting("which model", group="others")
    names: tuple[str, ...] = setting("what else", group="others", default=(), grows=True)


def parse(*words: str) -> dict[str, Any]:
    """The typed settings."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_settings(parser, Settings)
    return vars(parser.parse_args(words))


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        ("", {}),
        ("--name y", {"name": "y"}),
        ("--quick --no-deep", {"quick": True, "deep": False}),
        ("--blocks", {"blocks": 0}),
        ("--blocks 3", {"blocks": 3}),
        ("--kind b", {"kind": "b"}),
        ("--file a/b", {"file": Path("a/b")}),
        ("--file=~/b", {"file": Path.home() / "b"}),
        ("--model=~/b", {"model": str(Path.home() / "b")}),
        ("--model https://x//b", {"model": "https://x//b"}),
        ("--weights 1 2 --weights 3", {"weights": [3]}),
        ("--names a b --names c", {"names": ["a", "b", "c"]}),
    ],
)
def test_a_parser_returns_what_is_typed(words, typed):
    assert parse(*words.split()) == typed


@pytest.mark.parametrize("words", ["--sides 3 4", "--weights auto 2", "--weights 0.5"])
def test_lists_are_typed_with_spaces_and_settings_are_typed_as_they_are_printed(words):
    typed = parse(*words.split())
    assert as_flags(checked(Settings, typed)) == words


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            {"sides": [3]},
            "sides is [3], expected a list of 2, each a whole number of at least 1, at most 10^9, or null",
        ),
        (
            {"sides": [3, 0]},
            "sides is [3, 0], expected a list of 2, each a whole number of at least 1, at most 10^9, or null",
        ),
        ({"weights": ["half"]}, 'weights is ["half"], expected a list, each a number above 0, or auto'),
        ({"kind": "c"}, 'kind is "c", expected a or b, or null'),
        ({"quick": 1}, "quick is 1, expected true or false"),
        ({"blocks": True}, "blocks is true, expected a whole number of at least 0, or null"),
        ({"file": 3}, "file is 3, expected a path, or null"),
        ({"wings": 2}, "the settings holds wings, which this version does not know: it was made by a newer version"),
        ([], "the settings is [], expected an object"),
    ],
)
def test_a_value_of_json_that_no_setting_has_is_named(content, line):
    with pytest.raises(ValueError) as caught:
        from_json(Settings, content, "the settings")
    assert str(caught.value) == line


def test_json_has_lists_for_tuples_and_texts_for_paths():
    assert from_json(Settings, {"sides": [3, 4], "weights": [1, "auto"], "file": "a"}, "it") == Settings(
        sides=(3, 4), weights=(1.0, "auto"), file=Path("a")
    )


def test_a_help_states_each_default_once():
    parser = argparse.ArgumentParser()
    add_settings(parser, Settings)
    text = " ".join(parser.format_help().split())
    assert "--name NAME what (default: x) --sides H W how large --weights" in text
    assert "--quick 5% sooner --deep, --no-deep deeper --blocks [BLOCKS]" in text


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Natural, "1", 1),
        (Count, "0", 0),
        (Positive, "1e-9", 1e-9),
        (Amount, "0", 0.0),
        (FractionAbove0, "0.99", 0.99),
        (Fraction, "0", 0.0),
        (Seed, "4294967295", 4294967295),
        (Natural | Auto, "auto", "auto"),
        (Natural | Auto, "2", 2),
    ],
)
def test_a_word_within_the_limits_is_taken(kind, text, value):
    assert reader(kind)(text) == value


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (Natural, ["0", "-1", "1.5", ""]),
        (Count, ["-1", "0.5"]),
        (Positive, ["0", "-1", "inf", "nan", "x"]),
        (Amount, ["-0.1", "inf", "nan"]),
        (FractionAbove0, ["0", "1", "20"]),
        (Fraction, ["1", "-0.1"]),
        (Seed, ["-1", "4294967296", "1.0"]),
        (Path, [""]),
        (str, [""]),
        (Natural | Auto, ["0", "automatic"]),
    ],
)
def test_a_word_beyond_the_limits_is_refused(kind, texts):
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=" is not "):
            reader(kind)(text)
