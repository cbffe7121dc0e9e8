"""Signals that ask a process to stop: Ctrl-C, SIGTERM, SIGUSR1, and SIGHUP when the terminal was closed."""

import ctypes
import gc
import os
import signal
import sys
import tempfile
import time
from types import FrameType

# not every system has all of them
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
HANG_UP = getattr(signal, "SIGHUP", None)  # the terminal was closed; Windows has no such signal
SPINS = "10000"  # of a thread that waits for another one; more are not faster on a machine that is not busy
PR_SET_PDEATHSIG = 1  # linux/prctl.h
ONE_PRESS_SECONDS = 1.0  # a launcher or `timeout` repeats a Ctrl-C that the terminal has already sent to all processes


def begin_imports() -> None:
    """Prepare a script for the imports of its libraries: Ctrl-C prints a line and ends it, no garbage is collected.

    An exception would not do for Ctrl-C: it may be raised where a library's own code swallows it. Modules are no
    garbage, but to look for it among them takes a fifth of a second. `run_script` ends both.

    On a CPU, torch's threads wait for each other by spinning, 30 times longer if nothing is set. Where other programs
    are busy too, a thread then keeps the one that it waits for from its processor. libgomp reads this once, when it is
    loaded.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    # a shell starts a process in the background so that it ignores Ctrl-C
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:  # torch would raise it while it is imported
        script = os.path.basename(sys.argv[0])
        sys.exit(f"{script}: error: {error.strerror}; set TMPDIR to a folder that can be written")
    gc.disable()


def raise_at_signals() -> None:
    """Make Ctrl-C, SIGTERM and a closed terminal raise an exception, for a script that has imported all.

    The exception removes half-written files. The process also gets SIGTERM when its launcher dies.
    """
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, HANG_UP):
        if number is not None and not _outlasts_terminal(number):
            signal.signal(number, _exit)
    launched_alone = "ACCELERATE_MIXED_PRECISION" in os.environ and "WORLD_SIZE" not in os.environ
    if launched_alone or "TORCHELASTIC_RUN_ID" in os.environ:
        _end_with_parent(signal.SIGTERM)


def outlast_stop_signals() -> None:
    """Ignore the signals that ask to stop, but end with the parent process: for a process that works for another."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _end_with_parent(signal.SIGKILL)


class StopRequest:
    """Records the signals that ask a run to stop, among them SIGUSR1, which Slurm sends before the time is up.

    A second Ctrl-C, at least ONE_PRESS_SECONDS after the first, ends the process at once.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._first_interrupt: float | None = None
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]  # stdout and stderr
        for number in STOP_SIGNALS:
            if not _outlasts_terminal(number):
                signal.signal(number, self._record)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if number == HANG_UP:
            self._leave_terminal()
        elif not self.is_asked:
            _print("stopping after this step, then the run is saved; a second Ctrl-C ends it at once, unsaved")
        self.is_asked = True
        if number == signal.SIGINT:
            now = time.monotonic()
            self._first_interrupt = self._first_interrupt or now
            if now - self._first_interrupt >= ONE_PRESS_SECONDS:
                os._exit(128 + number)

    def _leave_terminal(self) -> None:
        """Discard all further output, since printing to a closed terminal would be an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in self._terminals:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    _print(f"{os.path.basename(sys.argv[0])}: interrupted")
    os._exit(128 + number)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _outlasts_terminal(number: int) -> bool:
    """Whether the signal means that the terminal was closed, and nohup has set the process to ignore it."""
    return number == HANG_UP and signal.getsignal(number) == signal.SIG_IGN


def _end_with_parent(number: int) -> None:
    """Make the kernel send a signal to this process when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def _print(line: str) -> None:
    """Print a line from the first process; a handler may interrupt a `print`, which cannot be called again within."""
    if os.environ.get("RANK", "0") == "0":
        os.write(2, f"{line}\n".encode())
