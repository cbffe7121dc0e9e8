"""Settings that are flags: a dataclass with a `setting` for each field is the one table that a parser is made from."""

import argparse
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from runtime.files import user_path, user_text
from runtime.values import Misfit, OneOf, Source, description, field_types, fit


def setting(help_text: str, *, default: Any = None, **facts: Any) -> Any:
    """A field of a dataclass that is a flag too; the type of the field says which values the flag takes.

    Args:
        default: the value without the flag, which the help states unless `help_text` does; MISSING if it is required.
        facts: what else is known of the setting:
            `group` and `metavar` of the flag in the help; `const`, the value of a flag that stands alone; `auto` if
            this word means None; `may_be_empty=True` if an empty text is a value too; `grows=True` if a flag that is
            typed again adds to the list of the first, and does not replace it; `unplanned`, the value without a
            plan of a setting that is chosen from the data;
            `is_repeated=False` if `--like` does not take it from the recorded run; `is_compared=False` if a resumed run
            may change it without a word; `has_effect=False` if the numbers of a run do not depend on it.
    """
    return field(default=default, metadata={"help": help_text, **facts})


def add_settings(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add a flag for each `setting` of a dataclass. What the parser returns holds the typed flags alone."""
    types = field_types(kind)
    groups = {group.title: group for group in parser._action_groups}
    for entry in fields(kind):
        name = entry.metadata.get("group")
        if name is None:
            continue
        if name not in groups:
            groups[name] = parser.add_argument_group(name)
        groups[name].add_argument(flag_of(entry.name), **_argument(entry, types[entry.name]))


def _argument(entry: Field, hint: Any) -> dict[str, Any]:
    """A setting as argparse takes it."""
    hints: tuple[Any, ...] = (hint,)
    if get_origin(hint) in (Union, UnionType):
        hints = get_args(hint)
    argument: dict[str, Any] = {"help": _help(entry), "default": argparse.SUPPRESS}
    argument["required"] = entry.default is MISSING
    if bool in hints:
        argument["action"] = argparse.BooleanOptionalAction
        if entry.default is False:
            argument["action"] = "store_true"
        return argument
    argument["metavar"] = entry.metadata.get("metavar")
    if "const" in entry.metadata:
        argument |= {"nargs": "?", "const": entry.metadata["const"]}
    if get_origin(hints[0]) is tuple:
        items = get_args(hints[0])
        argument["nargs"] = "+" if items[-1] is Ellipsis else len(items)
        hints = items[:1]
    if entry.metadata.get("grows"):
        argument["action"] = "extend"
    words = [kind for kind in hints if kind is not NoneType]
    word: Any = Union[tuple(words)]  # noqa: UP007  # made at run time
    may_be_empty = entry.metadata.get("may_be_empty", False)
    argument["type"] = reader(word, takes_auto="auto" in entry.metadata, may_be_empty=may_be_empty)
    if len(words) == 1 and get_origin(words[0]) is Annotated:
        limit = get_args(words[0])[1]
        if isinstance(limit, OneOf):
            argument["choices"] = tuple(limit.choices)
    return argument


def _help(entry: Field) -> str:
    """The help of a setting, with its default unless that is on or off, or stated already."""
    text = entry.metadata["help"].replace("%", "%%")
    default = entry.default
    if "unplanned" in entry.metadata:
        default = "chosen from the data"
    has_default = default not in (None, (), MISSING) and not isinstance(default, bool)
    if has_default and "(default: " not in text:
        text += f" (default: {default})"
    return text


def reader(hint: Any, *, takes_auto: bool = False, may_be_empty: bool = False) -> Callable[[str], Any]:
    """A type for argparse: a word as a value of the type, and None for `auto` if it `takes_auto`.

    An empty text is that of a shell's variable that is not set, unless it `may_be_empty`. In a path and a
    Source, `~` is the home folder, as no shell makes it of `--output-dir=~/runs`.
    """

    def read(text: str) -> Any:
        if not text and not may_be_empty:
            raise argparse.ArgumentTypeError("'' is not a value; give one, or leave it out")
        if takes_auto and text == "auto":
            return None
        if hint is Path:
            return user_path(text)
        if hint == Source:
            text = user_text(text)
        for kind in (int, float, str):
            with suppress(ValueError, Misfit):
                return fit(kind(text), hint)
        raise argparse.ArgumentTypeError(f"{text!r} is not {description(hint)}")

    return read


def flag_of(name: str) -> str:
    """The typed flag of a setting: --batch-size for batch_size."""
    return "--" + name.replace("_", "-")


def as_flags(values: Mapping[str, Any]) -> str:
    """The values in the form in which flags are typed on the command line."""
    words = []
    for name, value in values.items():
        if value is not None:
            words.append(_as_flag(name, value))
    return " ".join(words)


def _as_flag(name: str, value: Any) -> str:
    flag = flag_of(name)
    if isinstance(value, bool):
        return flag if value else f"--no-{flag.removeprefix('--')}"
    words = [flag]
    values = value if isinstance(value, tuple) else (value,)
    for item in values:
        if isinstance(item, float):
            words.append(f"{item:g}")
        else:
            words.append(shlex.quote(str(item)))
    return " ".join(words)
