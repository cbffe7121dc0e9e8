"""Command lines: a parser whose mistakes are one line, and folders to write into."""

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from runtime import VERSION
from runtime.errors import SettingsError, UsageError
from runtime.redact import PASSWORD
from runtime.script import print_error

LAUNCH_HINTS = {  # flags of other programs -> what to type here
    "gpus gpu device cuda": "the launcher chooses devices: accelerate launch --multi_gpu --num_processes N for N GPUs,"
    " accelerate launch --cpu for the CPU; without either, one GPU is used where there is one",
    "amp fp16": "the launcher chooses the precision: accelerate launch --mixed_precision fp16",
    "bf16": "the launcher chooses the precision: accelerate launch --mixed_precision bf16",
    "compile": "the launcher compiles: accelerate launch --dynamo_backend inductor",
    "config-file cpu mixed-precision multi-gpu num-processes num-machines machine-rank main-process-ip"
    " main-process-port dynamo-backend max-restarts": "it is an option of the launcher and stands before the script, as"
    " in accelerate launch --mixed_precision bf16 train.py",
}
DASHES = "-\u2013\u2014\u2212"  # word processors turn two dashes into a long one
FLAG = re.compile(f"[{DASHES}]{{1,2}}[a-zA-Z]")


class Arguments(argparse.ArgumentParser):
    """An argument parser whose errors are one line that suggests the most similar flag; flags cannot be abbreviated.

    Args:
        hints: flags of other programs, with spaces between and without leading dashes -> what to type here; a script
            that has some is a launched one, with LAUNCH_HINTS too.
    """

    def __init__(self, description: str, usage: str | None = None, hints: Mapping[str, str] | None = None) -> None:
        style = argparse.RawDescriptionHelpFormatter  # a description keeps its lines
        super().__init__(description=description, usage=usage, allow_abbrev=False, formatter_class=style)
        version = f"unet-accelerate {VERSION}"
        self.add_argument("--version", action="version", version=version, help="print the version and end")
        self.hints: dict[str, str] = {}
        if hints:
            for flags, hint in {**LAUNCH_HINTS, **hints}.items():
                self.hints |= dict.fromkeys(flags.split(), hint)

    def parse_args(  # type: ignore[override]  # callers cannot pass a namespace
        self, args: list[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        words = sys.argv[1:] if args is None else args
        self._check_passwords(words)
        for word in words:
            if word == "--":  # only files stand behind it
                break
            # argparse would first name the required flag that was mistyped
            if FLAG.match(word) and word.partition("=")[0] not in self._option_string_actions:
                self._refuse(word)
        parsed, unknown = self.parse_known_args(words)
        if unknown:
            self._refuse(unknown[0])
        return parsed

    def _check_passwords(self, words: list[str]) -> None:
        for before, word in zip(["", *words], words, strict=False):
            if PASSWORD.search(word):
                flag = f"{before} " if FLAG.match(before) else ""
                self.error(
                    f"{flag}{word.partition('://')[0]}://... was given with a password, which others could read in the"
                    " command and its records; leave it out of the URL, and give it in the environment (docs/data.md)"
                )

    def error(self, message: str) -> NoReturn:
        found = re.match(r"argument (--\S+): (expected |'\d+ *[x,X*] *\d+')", message)
        if found:  # a flag that lacks values, or whose sides were typed as 3x4
            action = self._option_string_actions[found[1]]
            values = self._get_formatter()._format_args(action, action.dest.upper())
            message += f"; give {found[1]} {values}"
        sys.exit(print_error(UsageError(message)))

    def _refuse(self, argument: str) -> NoReturn:
        """End with a line for an argument that does not exist: what to type, or the most similar flag."""
        flag = argument.partition("=")[0]
        name = flag.lstrip(DASHES).replace("_", "-")
        if name.lower() in self.hints:
            self.error(f"unknown argument {argument}; {self.hints[name.lower()]}")
        flags = {known.strip("-"): known for known in self._option_string_actions}
        matches = difflib.get_close_matches(name, flags, n=1)  # with their dashes all flags would be similar
        hint = f"did you mean {flags[matches[0]]}?" if matches else f"see {self.prog} --help"
        self.error(f"unknown argument {argument}; {hint}")


def empty_folder(text: str) -> Path:
    """A folder to write into, absent or empty, for argparse."""
    folder = Path(text)
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise argparse.ArgumentTypeError(f"{text} is not an empty folder: choose another, or empty it first")
    return folder


def check_free(argument: str, files: Iterable[Path], *, overwrite: bool) -> None:
    """Raises SettingsError if a file that an argument, such as `--output a`, stands for is there and is to be kept."""
    taken = [file for file in files if file.exists()]
    if taken and not overwrite:
        raise SettingsError(f"{argument}: {taken[0]} is there already; choose another, or give --overwrite")
