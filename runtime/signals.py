"""Signals that ask a run to stop: all processes end after the same step, after saving a checkpoint."""

import ctypes
import os
import signal
import sys
import time
from threading import Thread
from types import FrameType

from runtime.console import is_first_process, say_error

STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")  # not every system has all of them
PR_SET_PDEATHSIG = 1  # linux/prctl.h
HANG_UP = getattr(signal, "SIGHUP", None)  # the terminal was closed; Windows has no such signal
ONE_PRESS_SECONDS = 1.0  # a launcher or `timeout` repeats a Ctrl-C that the terminal has already sent to all processes


class StopRequest:
    """Records SIGTERM, SIGUSR1 (which Slurm sends before the time is up), Ctrl-C and the closing of the terminal.

    A second Ctrl-C, at least ONE_PRESS_SECONDS after the first, ends the process at once.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]  # stdout and stderr
        for number in stop_signals():
            if not _outlasts_terminal(number):
                signal.signal(number, self._remember)
        _answer_signals()
        _follow_launcher()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True
        if number == HANG_UP:
            self._leave_terminal()

    def _leave_terminal(self) -> None:
        """Discard all further output, since printing to a closed terminal would be an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in self._terminals:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


def stop_signals() -> list[signal.Signals]:
    """The STOP_SIGNALS that this system has."""
    return [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]


def outlast_stop_signals() -> None:
    """Ignore the signals that ask to stop, but end with the parent process: for a process that works for another."""
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _outlasts_terminal(number: int) -> bool:
    """Whether the signal means that the terminal was closed, and nohup has set the process to ignore it."""
    return number == HANG_UP and signal.getsignal(number) == signal.SIG_IGN


def _answer_signals() -> None:
    """Answer the first signal with a line, and end at a second Ctrl-C.

    A thread does it, since Python's own handlers wait until a backward pass is over.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        is_answered = False
        first: float | None = None
        while True:
            (number,) = os.read(reading, 1)
            if number in stop_signals() and number != HANG_UP and not is_answered and is_first_process():
                is_answered = True
                say_error("stopping after this step, then the run is saved; a second Ctrl-C ends it at once, unsaved")
            if number != signal.SIGINT:
                continue
            now = time.monotonic()
            first = first or now
            if now - first >= ONE_PRESS_SECONDS:
                os._exit(128 + signal.SIGINT)

    Thread(target=watch, daemon=True).start()


def exit_on_sigterm() -> None:
    """Make SIGTERM and a closed terminal end this process like an error, which removes half-written files."""
    for number in (signal.SIGTERM, HANG_UP):
        if number is not None and not _outlasts_terminal(number):
            signal.signal(number, _exit)
    _follow_launcher()


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _follow_launcher() -> None:
    """Make the kernel send SIGTERM to this process when its launcher dies, which would leave its processes running."""
    launched_alone = "ACCELERATE_MIXED_PRECISION" in os.environ and "WORLD_SIZE" not in os.environ
    if (launched_alone or "TORCHELASTIC_RUN_ID" in os.environ) and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
