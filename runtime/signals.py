"""Signals that ask a run to stop: all processes end after the same step, with everything saved."""

import ctypes
import os
import signal
import sys
import time
from threading import Thread
from types import FrameType

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ONE_PRESS_SECONDS = 1.0  # a launcher, or `timeout`, passes on a Ctrl-C that the terminal has sent to all already


class StopRequest:
    """Remembers SIGTERM, SIGUSR1 (what Slurm sends before the time is up) and Ctrl-C.

    A second Ctrl-C, at least ONE_PRESS_SECONDS after the first, ends the process at once.
    """

    def __init__(self) -> None:
        self.is_asked = False
        for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGUSR1", signal.SIGTERM)):
            signal.signal(number, self._remember)
        _end_at_second_interrupt()
        _follow_launcher()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True


def _end_at_second_interrupt() -> None:
    """Watch for the second Ctrl-C in a thread: Python's own handlers have to wait until a backward pass is over."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        first: float | None = None
        while True:
            if os.read(reading, 1) != bytes([signal.SIGINT]):
                continue
            now = time.monotonic()
            first = first or now
            if now - first >= ONE_PRESS_SECONDS:
                os._exit(128 + signal.SIGINT)

    Thread(target=watch, daemon=True).start()


def exit_on_sigterm() -> None:
    """Have SIGTERM end this process as an error would, so that half-written files are removed."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    _follow_launcher()


def _follow_launcher() -> None:
    """Have the kernel send SIGTERM to this process when the launcher dies: launchers leave their processes running."""
    launched_alone = "ACCELERATE_MIXED_PRECISION" in os.environ and "WORLD_SIZE" not in os.environ
    if (launched_alone or "TORCHELASTIC_RUN_ID" in os.environ) and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
