"""Types with limits, by which values of JSON and words of a command line are checked.

A dataclass has such types for its fields, as in `depth: Natural = 4`; `from_json` makes an instance of an object.
"""

import json
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from runtime.redact import shorten

Kind = TypeVar("Kind")
NEWER_VERSION = "which this version does not know: it was made by a newer version"
NAMES: dict[Any, str] = {
    NoneType: "null",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    list: "a list",
}


@dataclass(frozen=True)
class Limit:
    """What a value must be beside its type, as in `Annotated[int, Limit(...)]`.

    Args:
        holds: whether a value of the type keeps the limit.
        expected: in words what such a value is.
    """

    holds: Callable[[Any], bool]
    expected: str


@dataclass(frozen=True, eq=False)
class OneOf:
    """The limit that a value is one of some choices; tasks may be added to theirs later."""

    choices: Collection[Any]

    def holds(self, value: Any) -> bool:
        """Whether a value is one of the choices."""
        return value in self.choices

    @property
    def expected(self) -> str:
        """The choices as a text."""
        words = list(map(str, self.choices))
        if len(words) > 2:
            return f"one of {', '.join(words)}"
        return " or ".join(words)


Source = Annotated[str, Limit(bool, "a path, or a name or address")]
Natural = Annotated[int, Limit(lambda number: 1 <= number <= 10**9, "a whole number of at least 1, at most 10^9")]
Count = Annotated[int, Limit(lambda number: number >= 0, "a whole number of at least 0")]
Byte = Annotated[int, Limit(lambda number: 0 <= number <= 255, "a whole number from 0 to 255")]
# every random generator takes such a seed
Seed = Annotated[int, Limit(lambda number: 0 <= number < 2**32, "a whole number from 0 to 2^32 - 1")]
Positive = Annotated[float, Limit(lambda number: number > 0, "a number above 0")]
Amount = Annotated[float, Limit(lambda number: number >= 0, "a number of at least 0")]
Fraction = Annotated[float, Limit(lambda number: 0 <= number < 1, "a number of at least 0 and below 1")]
FractionAbove0 = Annotated[float, Limit(lambda number: 0 < number < 1, "a number above 0 and below 1")]


class Misfit(Exception):
    """A value is not of a type."""


@lru_cache
def field_types(kind: type) -> dict[str, Any]:
    """The type of each field of a dataclass, with its limits."""
    return get_type_hints(kind, include_extras=True)


def from_json(kind: type[Kind], content: Any, owner: str) -> Kind:
    """An object of JSON as an instance of the dataclass `kind`: tuples for lists, floats for whole numbers.

    Raises ValueError for a value of another type, a missing entry, and entries of a newer version.

    Args:
        owner: the name of the object, for messages.
    """
    if not isinstance(content, dict):
        raise ValueError(f"{owner} is {_shown(content)}, expected an object")
    assert is_dataclass(kind)
    unknown = sorted(content.keys() - field_types(kind).keys())
    if unknown:
        raise ValueError(f"{owner} holds {', '.join(unknown)}, {NEWER_VERSION}")
    required = {entry.name for entry in fields(kind) if entry.default is entry.default_factory is MISSING}
    lacking = sorted(required - content.keys())
    if lacking:
        raise ValueError(f"{owner} lacks {', '.join(lacking)}")
    return kind(**checked(kind, content))


def checked(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values of fields of the dataclass `kind`, with the types of the fields; other entries are left out.

    Raises ValueError that names the field and the value that its type cannot hold.
    """
    types = field_types(kind)
    fitted = {}
    for name, value in values.items():
        hint = types.get(name)
        if isinstance(hint, type) and is_dataclass(hint) and not isinstance(value, hint):
            fitted[name] = from_json(hint, value, name)
        elif hint is not None:
            try:
                fitted[name] = fit(value, hint)
            except Misfit as error:
                raise ValueError(f"{name} is {_shown(value)}, expected {description(hint)}") from error
    return fitted


def check_fields(instance: Any) -> None:
    """Give the fields of a frozen dataclass the types that it declares. Raises ValueError as `checked` does."""
    vars(instance).update(checked(type(instance), vars(instance)))


def fit(value: Any, hint: Any) -> Any:
    """The value with a type: tuples for lists, floats for whole numbers. Raises Misfit if the type cannot hold it."""
    outer, inner = get_origin(hint), get_args(hint)
    if outer is Annotated:
        fitted = fit(value, inner[0])
        if inner[1].holds(fitted):
            return fitted
    elif outer in (Union, UnionType):
        for kind in inner:
            with suppress(Misfit):
                return fit(value, kind)
    elif outer is tuple and isinstance(value, list | tuple):
        if inner[-1] is Ellipsis:
            inner = inner[:1] * len(value)
        if len(value) == len(inner):
            return tuple(map(fit, value, inner))
    elif outer is list and isinstance(value, list):
        return [fit(item, inner[0]) for item in value]
    elif outer is dict and isinstance(value, dict):
        return {key: fit(item, inner[1]) for key, item in value.items()}
    elif hint is float:
        is_number = isinstance(value, int | float) and type(value) is not bool
        if is_number and abs(value) <= sys.float_info.max:
            return float(value)
    elif hint is int:
        if type(value) is int:
            return value
    elif hint is Path and isinstance(value, str) and value:
        return Path(value)
    elif hint is Any or (outer is None and isinstance(value, hint)):
        return value
    raise Misfit


def description(hint: Any) -> str:
    """In words what a value of a type is."""
    outer, inner = get_origin(hint), get_args(hint)
    if outer is Annotated:
        return inner[1].expected
    if outer in (Union, UnionType):
        return ", or ".join(map(description, inner))
    if outer is tuple:
        number = "a list"
        if inner[-1] is not Ellipsis:
            number += f" of {len(inner)}"
        return f"{number}, each {description(inner[0])}"
    return NAMES.get(outer or hint, "an object")


def _shown(value: Any) -> str:
    """A value as JSON has it, cut to a length that fits into a line."""
    return shorten(json.dumps(value, default=str), 60)
