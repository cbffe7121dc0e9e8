"""Progress bars that are bars on a terminal and plain lines in a log file."""

import sys
from collections.abc import Iterable, Iterator

from tqdm import tqdm

LINE_EVERY_SECONDS = 10.0
PLAIN_LINE = "{desc}: {percentage:.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


class _Lines:
    """A stream for tqdm where nobody can see a line being redrawn: each new state becomes a line of its own."""

    last = ""

    def write(self, text: str) -> None:
        text = text.replace("\r", "").replace("\x1b[A", "").strip()
        if text and " 0/" not in text and text != self.last:
            self.last = text
            sys.stderr.write(text + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


def progress_bar(total: int, description: str, unit: str, *, initial: int = 0, show: bool = True) -> tqdm:
    """A bar on standard error; in a pipe or a file, a line every ten seconds. To be shown by one process."""
    terminal = sys.stderr.isatty()
    return tqdm(
        total=total,
        initial=initial,
        desc=description,
        unit=unit,
        disable=not show,
        file=None if terminal else _Lines(),
        mininterval=0.2 if terminal else LINE_EVERY_SECONDS,
        maxinterval=0.2 if terminal else LINE_EVERY_SECONDS,
        dynamic_ncols=terminal,
        bar_format=None if terminal else PLAIN_LINE,
        leave=not terminal or None,
    )


def track(iterable: Iterable, total: int, description: str, *, unit: str = "file", show: bool = True) -> Iterator:
    """Iterate with a progress bar."""
    with progress_bar(total, description, unit, show=show) as bar:
        for item in iterable:
            yield item
            bar.update()


def say(message: str, *, show: bool = True) -> None:
    """Print a line without breaking the bar that is being drawn."""
    if show:
        tqdm.write(message)
