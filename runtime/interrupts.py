"""Ctrl-C while a script still imports its libraries, which takes seconds: one line, as it is later."""

import os
import signal
import sys
from types import FrameType


def end_at_interrupt() -> None:
    """Make Ctrl-C print a line and end the process; a script calls this before it imports anything else.

    An exception would not do: it may be raised where a library's own code swallows it.
    """
    # a shell starts a process in the background so that it ignores Ctrl-C
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_at_interrupt() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again, for a script that has imported all."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    if os.environ.get("RANK", "0") == "0":  # the first process prints for all
        os.write(2, f"{os.path.basename(sys.argv[0])}: interrupted\n".encode())
    os._exit(128 + number)
