"""Command lines: a parser whose mistakes are one line, and folders to write into."""

import argparse
import difflib
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from runtime.errors import SettingsError, UsageError
from runtime.redact import PASSWORD, redact
from runtime.script import print_error

LAUNCH_HINTS = {  # flags of other programs -> what to type here; {script} is the script with the other arguments
    "gpus gpu device cuda": "the launcher chooses devices: accelerate launch --multi_gpu --num_processes N {script} for"
    " N GPUs, accelerate launch --cpu {script} for the CPU; without either, one GPU is used where there is one",
    "amp fp16": "the launcher chooses the precision: accelerate launch --mixed_precision fp16 {script}",
    "bf16": "the launcher chooses the precision: accelerate launch --mixed_precision bf16 {script}",
    "compile": "the launcher compiles: accelerate launch --dynamo_backend inductor {script}",
}
LONG_DASHES = ("\u2013", "\u2014", "\u2212")  # word processors turn two dashes into these


class Arguments(argparse.ArgumentParser):
    """An argument parser whose errors are one line that suggests the most similar flag; flags cannot be abbreviated.

    Args:
        hints: flags of other programs, with spaces between and without leading dashes -> what to type here; a script
            that has some is a launched one, with LAUNCH_HINTS too.
    """

    def __init__(self, description: str, usage: str | None = None, hints: Mapping[str, str] | None = None) -> None:
        style = argparse.RawDescriptionHelpFormatter  # a description keeps its lines
        super().__init__(description=description, usage=usage, allow_abbrev=False, formatter_class=style)
        self.hints: dict[str, str] = {}
        if hints:
            for flags, hint in {**LAUNCH_HINTS, **hints}.items():
                self.hints |= dict.fromkeys(flags.split(), hint)

    def parse_args(  # type: ignore[override]  # callers cannot pass a namespace
        self, args: list[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        words = sys.argv[1:] if args is None else args
        for word_before, word in zip(["", *words], words, strict=False):
            if word.startswith(LONG_DASHES):
                flag = f"--{word.lstrip('-' + ''.join(LONG_DASHES))}"
                self.error(f"{word} begins with a long dash, as word processors write it; type {flag}")
            if PASSWORD.search(word):
                flag = ""
                if re.fullmatch("--[a-z-]+", word_before):
                    flag = f"{word_before} "
                self.error(
                    f"{flag}{redact(word)} was given with a password, which others could read in the command and its"
                    " records; leave it out of the URL, and give it in the environment (docs/data.md)"
                )
            if word.startswith("-") and word.partition("=")[2] == "--":  # argparse would make it an empty list
                self.error(f"{word} has no value; for a file of the name -- type ./--")
        parsed, unknown = self.parse_known_args(words)
        if unknown:
            self.error(self._unknown_message(unknown[0]))
        return parsed

    def error(self, message: str) -> NoReturn:
        hint = self._mistyped_flag(message) or self._form(message)
        if hint:
            message += f"; {hint}"
        sys.exit(print_error(UsageError(message)))

    def _mistyped_flag(self, message: str) -> str | None:
        """The mistyped flag behind the error that a flag is missing, which argparse reports first."""
        if "required" not in message:
            return None
        for text in sys.argv[1:]:
            is_flag = re.match("--?[a-zA-Z]", text) is not None
            if is_flag and text.split("=")[0] not in self._option_string_actions:
                return self._unknown_message(text)
        return None

    def _form(self, message: str) -> str | None:
        """The form of a flag that lacks values, or whose sides were typed as 3x4."""
        found = re.match(r"argument (--\S+): (expected |'\d+ *[x,X*] *\d+')", message)
        if found is None:
            return None
        action = self._option_string_actions[found[1]]
        names = action.metavar or action.dest.upper()
        values = [names] if isinstance(names, str) else list(names)
        if action.nargs == "+":
            values += [*values, "..."]
        return " ".join(["give", found[1], *values])

    def _unknown_message(self, argument: str) -> str:
        """The message for an argument that does not exist, with the most similar flag."""
        name = argument.split("=")[0].lstrip("-").replace("_", "-")
        if name.lower() in self.hints:
            _, script = _split_option(argument)
            hint = self.hints[name.lower()].format(script=shlex.join(script))
            return f"unknown argument {argument}; {hint}"
        flags = {}
        for flag in self._option_string_actions:
            flags[flag.strip("-")] = flag  # with their dashes all flags would be similar
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


def empty_folder(text: str) -> Path:
    """A folder to write into, absent or empty, for argparse."""
    folder = Path(text)
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise argparse.ArgumentTypeError(f"{text} is not an empty folder: choose another, or empty it first")
    return folder


def check_free(output: Path, files: Iterable[Path], *, overwrite: bool) -> None:
    """Raises SettingsError if one of the files that `--output` stands for is there, unless it may be overwritten."""
    taken = [file for file in files if file.exists()]
    if taken and not overwrite:
        raise SettingsError(f"--output {output}: {taken[0]} is there already; choose another, or give --overwrite")
