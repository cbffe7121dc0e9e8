"""Command lines: a parser whose mistakes are one line, and the types of arguments."""

import argparse
import difflib
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from runtime.errors import SettingsError, UsageError
from runtime.redact import PASSWORD, redact
from runtime.script import print_error

# hints for flags of other programs that choose devices; {script} is the script with the other arguments
_DEVICES = (
    "the launcher chooses devices: accelerate launch --multi_gpu --num_processes N {script} for N GPUs, accelerate"
    " launch --cpu {script} for the CPU; without either, one GPU is used where there is one"
)
_FP16 = "the launcher chooses the precision: accelerate launch --mixed_precision fp16 {script}"
_COMPILER = "the launcher compiles: accelerate launch --dynamo_backend inductor {script}"
LAUNCH_HINTS = {"bf16": _FP16.replace("fp16", "bf16"), "compile": _COMPILER}
LAUNCH_HINTS |= dict.fromkeys(("amp", "fp16"), _FP16)
LAUNCH_HINTS |= dict.fromkeys(("gpus", "gpu", "device", "cuda"), _DEVICES)

LONG_DASHES = ("\u2013", "\u2014", "\u2212")  # word processors turn two dashes into these

Number = TypeVar("Number", int, float)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A description keeps its lines; a default is added to help texts that do not state it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        states_it = "(default: " in text or isinstance(action.default, bool)  # flags that are on or off show no default
        has_default = action.default not in (None, [], argparse.SUPPRESS)
        if has_default and not states_it:
            text += " (default: %(default)s)"
        return text


class Arguments(argparse.ArgumentParser):
    """An argument parser whose errors are one line that suggests the most similar flag; flags cannot be abbreviated.

    Args:
        hints: flag of other programs, without its leading dashes -> the way to do the same here, as text.
    """

    def __init__(self, description: str, usage: str | None = None, hints: Mapping[str, str] | None = None) -> None:
        super().__init__(description=description, usage=usage, allow_abbrev=False, formatter_class=HelpFormatter)
        self.hints = hints or {}

    def parse_args(  # type: ignore[override]  # callers cannot pass a namespace
        self, args: list[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args)
        if unknown:
            self.error(self._unknown_message(unknown[0]))
        return parsed

    def parse_known_args(  # type: ignore[override]  # callers cannot pass a namespace
        self, args: list[str] | None = None, namespace: None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = sys.argv[1:] if args is None else args
        for word_before, word in zip(["", *words], words, strict=False):
            if word.startswith(LONG_DASHES):
                flag = f"--{word.lstrip('-' + ''.join(LONG_DASHES))}"
                self.error(f"{word} begins with a long dash, as word processors write it; type {flag}")
            if PASSWORD.search(word):
                flag = f"{word_before} " if re.fullmatch("--[a-z-]+", word_before) else ""
                self.error(
                    f"{flag}{redact(word)} was given with a password, which others could read in the command and its"
                    " records; leave it out of the URL, and give it in the environment (docs/data.md)"
                )
            if word.startswith("-") and word.partition("=")[2] == "--":  # argparse would make it an empty list
                self.error(f"{word} has no value; for a file of the name -- type ./--")
        return super().parse_known_args(args)

    def error(self, message: str) -> NoReturn:
        hints = [self._mistyped_flag(message), self._missing_values(message), self._joined_sides(message)]
        sys.exit(print_error(UsageError("; ".join([message, *filter(None, hints)]))))

    def _mistyped_flag(self, message: str) -> str | None:
        """The mistyped flag behind the error that a flag is missing, which argparse reports first."""
        if "required" not in message:
            return None
        flags = [text for text in sys.argv[1:] if re.match("--?[a-zA-Z]", text)]
        mistyped = [text for text in flags if text.split("=")[0] not in self._flags()]
        return self._unknown_message(mistyped[0]) if mistyped else None

    def _missing_values(self, message: str) -> str | None:
        """The form of a flag that lacks values."""
        lacks_values = re.match(r"argument (--\S+): expected ", message)
        return f"give {self._form(lacks_values[1])}" if lacks_values else None

    def _joined_sides(self, message: str) -> str | None:
        """Two sides with a space between them, where they were typed as 3x4."""
        joined_sides = re.match(r"argument (--\S+): '(\d+) *[x,X*] *(\d+)' is not", message)
        if joined_sides is None:
            return None
        flag, first_side, second_side = joined_sides.groups()
        takes_sides = self._option_string_actions[flag].nargs is not None
        return f"give {flag} {first_side} {second_side}" if takes_sides else None

    def _form(self, flag: str) -> str:
        """A flag with its values, as the help shows it."""
        action = self._option_string_actions[flag]
        names = action.metavar or action.dest.upper()
        if isinstance(names, str):
            names = (names,)
        return " ".join([flag, *names])

    def _flags(self) -> list[str]:
        flags: list[str] = []
        for action in self._actions:
            flags.extend(action.option_strings)
        return flags

    def _unknown_message(self, argument: str) -> str:
        """The message for an argument that does not exist, with the most similar flag."""
        name = argument.split("=")[0].lstrip("-").replace("_", "-")
        if name.lower() in self.hints:
            _, script = _split_option(argument)
            hint = self.hints[name.lower()].format(script=shlex.join(script))
            return f"unknown argument {argument}; {hint}"
        flags = {flag.strip("-"): flag for flag in self._flags()}  # with their dashes all flags would be similar
        if argument.startswith("--"):
            from runtime.launch import launcher_options  # torch and accelerate, which not every script needs

            if argument.split("=")[0] in launcher_options():
                option, script = _split_option(argument)
                line = shlex.join(["accelerate", "launch", *option, *script])
                return f"{argument} is an option of the launcher and stands before the script: {line}"
        matches = difflib.get_close_matches(name, flags, n=1)
        hint = f"did you mean {flags[matches[0]]}?" if matches else f"see {self.prog} --help"
        return f"unknown argument {argument}; {hint}"


def _split_option(option: str) -> tuple[list[str], list[str]]:
    """An option with the values behind it, and the script with all other arguments."""
    words = sys.argv[1:]
    start = words.index(option)
    end = start + 1
    if "=" not in option:
        while end < len(words) and not words[end].startswith("-"):
            end += 1
    return words[start:end], [sys.argv[0], *words[:start], *words[end:]]


def _number(kind: type[Number], is_valid: Callable[[Number], bool], expected: str) -> Callable[[str], Number]:
    """A type of numbers for argparse; `expected` says which are valid."""

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            pass
        else:
            if is_valid(value):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")

    return read


positive_int = _number(int, lambda value: value >= 1, "a whole number of at least 1")
non_negative_int = _number(int, lambda value: value >= 0, "a whole number of at least 0")
positive_float = _number(float, lambda value: 0 < value < math.inf, "a number above 0")
non_negative_float = _number(float, lambda value: 0 <= value < math.inf, "a number of at least 0")
fraction_above_0 = _number(float, lambda value: 0 < value < 1, "a number above 0 and below 1")
fraction = _number(float, lambda value: 0 <= value < 1, "a number of at least 0 and below 1")
# every random generator takes such a seed
seed_number = _number(int, lambda value: 0 <= value < 2**32, "a whole number from 0 to 2^32 - 1")


def fold_text(text: str) -> str:
    """`2/5` for the second of five folds, for argparse."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is not None:
        number, folds = map(int, match.groups())
        if folds >= 2 and 1 <= number <= folds:
            return text
    raise argparse.ArgumentTypeError(f"{text!r} is not K/N, such as 2/5 for the second of five folds")


def hub_id(text: str) -> str:
    """`name` or `owner/name` as the Hub takes it, for argparse."""
    try:
        validate_repo_id(text)
    except HFValidationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def non_empty_path(text: str) -> Path:
    """A path that is not empty, for argparse: `Path("")` would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return Path(text)


def utf8_path(text: str) -> Path:
    """A path that is text, for argparse: safetensors writes into no other."""
    try:
        os.path.abspath(text).encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8; choose a folder with another name") from error
    return Path(text)


def empty_folder(text: str) -> Path:
    """A folder to write into, absent or empty, for argparse."""
    folder = non_empty_path(text)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise argparse.ArgumentTypeError(f"{text} is not an empty folder: choose another, or empty it first")
    return folder


def check_free(output: Path, files: Iterable[Path], *, overwrite: bool) -> None:
    """Raises SettingsError if one of the files that `--output` stands for is there, unless it may be overwritten."""
    taken = [file for file in files if file.exists()]
    if taken and not overwrite:
        raise SettingsError(f"--output {output}: {taken[0]} is there already; choose another, or give --overwrite")


def auto_or(kind: Callable[[str], float]) -> Callable[[str], float | str]:
    """A type for argparse: `auto`, or a value that `kind` reads."""
    return lambda text: text if text == "auto" else kind(text)
