"""Output of a run: lines, and progress bars, which become plain lines in a log file."""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

from runtime.redact import shorten, shown

Item = TypeVar("Item")

LINE_EVERY_SECONDS = 10.0
MAX_LISTED = 2_000  # characters of a name or a line in a listing: messages end with their remedy
STEPS = "{n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
SECONDS = "{n_fmt}/{total_fmt} s [{elapsed}<{remaining}{postfix}]"  # they have no rate


def is_first_process() -> bool:
    """Whether this is the first process, which prints for all; works before a process group exists."""
    return os.environ.get("RANK", "0") == "0"


def open_streams() -> None:
    """Make standard output and error accept any text, also if the program was started without them."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # the stream stays open
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _write(line: str, stream: TextIO) -> None:
    """Print a line beside the bar being drawn; the program goes on where nobody reads it, or a log's disk is full."""
    with suppress(OSError):
        tqdm.write(line, file=stream)
        stream.flush()


def say(message: str, *, every_process: bool = False) -> None:
    """Print lines, redacted, on standard output from the first process."""
    if every_process or is_first_process():
        _write(shown(message, keep="\n"), sys.stdout)


def say_error(line: str, *, seen_by_all: bool = False) -> None:
    """Print a line, redacted, on standard error; with `seen_by_all` only the first process prints it."""
    if seen_by_all and not is_first_process():
        time.sleep(5)  # torchrun ends all processes as soon as one has ended: the first one needs time to print
    else:
        _write(shown(line), sys.stderr)


class _PlainLines:
    """A stream for tqdm without a terminal: each new state of a bar becomes a line of its own."""

    last = ""

    def write(self, text: str) -> None:
        text = text.replace("\r", "").replace("\x1b[A", "").strip()
        if text and " 0/" not in text and text != self.last:
            self.last = text
            with suppress(OSError):
                sys.stderr.write(text + "\n")

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def progress_bar(total: int, description: str, unit: str, *, initial: int = 0) -> tqdm:
    """A bar on standard error, from the first process; in a pipe or a file, a line every ten seconds."""
    state = SECONDS if unit == "s" else STEPS
    options: dict[str, Any] = {"mininterval": 0.2, "dynamic_ncols": True, "leave": None}
    options |= {"bar_format": "{l_bar}{bar}| " + state}
    if not sys.stderr.isatty():
        options = {"mininterval": LINE_EVERY_SECONDS, "maxinterval": LINE_EVERY_SECONDS}
        options |= {"file": _PlainLines(), "bar_format": "{desc}: {percentage:.0f}% " + state}
    hidden = not is_first_process()
    return tqdm(total=total, initial=initial, desc=description, unit=unit, disable=hidden, **options)


def track(iterable: Iterable[Item], total: int, description: str, *, unit: str = "file") -> Iterator[Item]:
    """Iterate with a progress bar."""
    with progress_bar(total, description, unit) as bar:
        for item in iterable:
            yield item
            bar.update()


def counted(count: int, singular: str, plural: str = "") -> str:
    """`1 step`, `1,200 steps`: a number with the words that it goes with; without `plural` an s is added."""
    if count == 1:
        return f"{count:,} {singular}"
    return f"{count:,} {plural or singular + 's'}"


def first_few(texts: Sequence[str], count: int) -> list[str]:
    """The first `count` texts, the longest of them without their middle, followed by "..." if there are more."""
    first_texts = [shorten(text, MAX_LISTED) for text in texts[:count]]
    if len(texts) > count:
        first_texts.append("...")
    return first_texts


def listing(texts: Sequence[str], limit: int = 3, separator: str = ", ") -> str:
    """The first `limit` texts as one text, with "..." at its end if there are more."""
    return separator.join(first_few(texts, limit))
