"""The names of classes: those of --classes, of the data set's own files, and of a background."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from data_utils.mask_values import has_colors, parse_value, show, value_text
from runtime.console import listing
from runtime.documents import parse_json, read_bytes
from runtime.errors import DataError
from unet.config import MaskValue

NamedClasses = Sequence[tuple[MaskValue, str]]  # the mask value and the name of each class
BACKGROUND = "background"
BACKGROUND_NAMES = (BACKGROUND, "_background_", "__background__")
OUTSIDE_MEANINGS = ("ignore", "background")  # the meaning of mask values that --classes leaves out


def is_background(name: str) -> bool:
    """Whether a class of this name is the background."""
    return name.lower() in BACKGROUND_NAMES


def named_classes(flag: str | None, file_classes: NamedClasses, outside: str | None) -> NamedClasses:
    """The classes of --classes, else of the data set's own files; none if neither names them.

    Args:
        outside: --outside; "background" adds a class for the values left out; "ignore" without `flag` leaves the data
            set's background out.
    """
    if flag and holds_names(flag):
        classes: NamedClasses = choose_classes(flag, file_classes)
        has_background = any(is_background(name) for _, name in file_classes)
        if outside != "ignore" or has_background:
            return _with_background(classes, file_classes)
        return classes
    if flag:
        classes = parse_classes(flag)
        return _with_background(classes, ()) if outside == "background" else classes
    if outside and not file_classes:
        raise DataError(f"--outside {outside} needs --classes; to ignore a mask value, give --ignore-index VALUE")
    if outside == "ignore":
        return [(value, name) for value, name in file_classes if not is_background(name)]
    return file_classes


def holds_names(flag: str | None) -> bool:
    """Whether --classes chooses classes by their names."""
    if not flag:
        return False
    return "=" not in flag and not flag.endswith(".json")


def choose_classes(text: str, file_classes: NamedClasses) -> list[tuple[MaskValue, str]]:
    """The classes of `person,dog`, found in `file_classes`, in this order. Raises DataError for unknown names."""
    value_by_name = {name: value for value, name in file_classes}
    if not value_by_name:
        raise DataError(
            f"--classes {text} chooses classes by name, but this data set names none; give VALUE=NAME,... or a JSON"
            " file whose name ends in .json"
        )
    classes: list[tuple[MaskValue, str]] = []
    names = [name.strip() for name in text.split(",")]
    for name in dict.fromkeys(filter(None, names)):
        if name not in value_by_name:
            raise DataError(f"--classes: {no_such_class(name, list(value_by_name), value_by_name)}")
        classes.append((value_by_name[name], name))
    return classes


def no_such_class(name: str, class_names: Sequence[str], known_names: Iterable[str]) -> str:
    """A half-sentence on a name of no class: the classes, and the one among all known names that is nearly the same."""
    close_names = get_close_matches(name, known_names, n=1)
    hint = f"; did you mean {close_names[0]}?" if close_names else ""
    return f"no class is called {name[:80]!r}; the classes are {listing(class_names, limit=8)}{hint}"


def _with_background(classes: NamedClasses, file_classes: NamedClasses) -> NamedClasses:
    """The classes, a background added as the first if there is none: the data set's, else of an unused value."""
    if any(is_background(name) for _, name in classes):
        return classes
    backgrounds = [(value, name) for value, name in file_classes if is_background(name)]
    if backgrounds:
        return [backgrounds[0], *classes]
    used_values = {value for value, _ in classes}
    zero: MaskValue = (0, 0, 0) if has_colors(used_values) else 0
    candidates = [zero, *(value for value, _ in file_classes)]
    unused_values = [value for value in candidates if value not in used_values]
    if not unused_values:
        return classes
    return [(unused_values[0], BACKGROUND), *classes]


def parse_classes(text: str) -> list[tuple[MaskValue, str]]:
    """`0=background,255=car`, `#804080=road,...`, or a JSON file {"0": "background"} or [name, ...].

    Several values may have one name: they are one class. Raises DataError for any other text, and for a value that
    occurs twice.
    """
    pairs = _read_classes(text) if text.endswith(".json") else _split_pairs(text)
    classes = [(parse_value(value.strip()), name.strip()) for value, name in pairs]
    values = [value for value, _ in classes]
    names = [name for _, name in classes]
    if "" in names:
        unnamed = values[names.index("")]
        raise DataError(f"class {value_text(unnamed)} has no name; expected VALUE=NAME")
    for value, count in Counter(values).items():
        if count > 1:
            raise DataError(f"class value {value_text(value)} is given twice")
    if len({type(value) for value in values}) > 1:
        raise DataError(f"classes mix numbers and colors: {show(values)}")
    return classes


def _split_pairs(text: str) -> list[tuple[str, str]]:
    """Value and name of each part of `0=background,255=car`."""
    pairs = []
    for pair_text in text.split(","):
        if pair_text.strip():
            value, _, name = pair_text.partition("=")
            pairs.append((value, name))
    return pairs


def _read_classes(path: str) -> list[tuple[str, str]]:
    """Value and name of each class in a JSON file."""
    try:
        # objects as tuples of pairs: a dict would hide a key that occurs twice
        content = parse_json(read_bytes(path), (list, tuple), as_pairs=True)
    except (OSError, ValueError) as error:
        raise DataError(f"classes {path!r}: neither VALUE=NAME,... nor a readable JSON file ({error})") from error
    if isinstance(content, list):
        content = [(str(i), name) for i, name in enumerate(content)]
    if not all(isinstance(name, str) for _, name in content):
        raise DataError(f'{path}: expected {{"0": "background", ...}} or ["background", ...]')
    return list(content)


def classes_example(values: Sequence[MaskValue]) -> str:
    """An example of --classes for these values, as a shell takes it: behind a bare # it would read nothing."""
    names = ["background", "foreground"]
    if len(values) != 2:
        names = [f"class{number}" if number else "background" for number in range(len(values))]
    texts = [f"{value_text(value)}={name}" for value, name in zip(values, names, strict=True)]
    return shlex.quote(",".join(texts))
