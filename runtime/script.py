"""Scripts that report an error in one line, printed once by any number of processes."""

import atexit
import errno
import gc
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from runtime.console import open_streams, say_error
from runtime.errors import SettingsError, UserError, UserWarningLine, one_line
from runtime.redact import redact, shown
from runtime.signals import raise_at_signals

_PLAIN = warnings.formatwarning
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of the device, of a user, of a file
DISK_ERRORS = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EIO, errno.EROFS, *FULL_DISK)
LONGEST_SHOWN = 80  # characters of a path that is too long


def run_script(main: Callable[[], None]) -> None:
    """Run `main`, then end the process; a UserError prints one line and sets the exit code, a bug a traceback."""
    code = 0
    if not gc.isenabled():  # since `begin_imports`; what stands in memory now stays to the end
        gc.freeze()
        gc.enable()
    raise_at_signals()
    open_streams()
    warnings.formatwarning = warning_line
    sys.excepthook = _print_bug
    threading.excepthook = _print_bug_of_thread
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:
        say_error(f"{_script()}: interrupted", seen_by_all=True)
        code = 128 + signal.SIGINT
    except UserError as error:
        code = print_error(error)
    except OSError as error:
        line = _describe_disk_error(error)
        if line is None:
            raise
        code = print_error(SettingsError(line))
    except RuntimeError as error:
        from runtime.distributed import describe_lost_process  # torch and accelerate, which not every script needs

        line = describe_lost_process(error)
        if line is None:
            raise
        code = print_error(UserError(line))
    _leave(code)


def _describe_disk_error(error: OSError) -> str | None:
    """The line for an error of a path that no program can prevent; None for any other, such as a missing file."""
    if error.errno == errno.ENAMETOOLONG:
        name = one_line(ValueError(error.filename), LONGEST_SHOWN)
        return f"{name}...: the path, or a name in it, is too long; choose a shorter one"
    if error.errno in DISK_ERRORS and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return None


def print_error(error: UserError) -> int:
    """Print the error as one line on standard error, and return its exit code."""
    say_error(f"{_script()}: error: {error}", seen_by_all=error.seen_by_all)
    return error.exit_code


def _print_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of a bug as Python does, redacted."""
    text = "".join(traceback.format_exception(kind, error, trace))
    print(redact(text), file=sys.stderr, end="")


def _print_bug_of_thread(bug: threading.ExceptHookArgs) -> None:
    """Print the traceback of a bug in a thread. A full disk is none: TensorBoard raises it again at its next call."""
    error = bug.exc_value
    is_full = isinstance(error, OSError) and error.errno in FULL_DISK
    if error is not None and not is_full:
        _print_bug(bug.exc_type, error, bug.exc_traceback)


def _script() -> str:
    """The name of the program in messages: of the script, or of the package that was run."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


def warning_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """The text of a warning, redacted; for a UserWarningLine without the line of code that raised it."""
    if issubclass(category, UserWarningLine):
        return shown(f"warning: {message}") + "\n"
    return redact(_PLAIN(message, category, filename, lineno, line))


def _leave(code: int) -> None:
    """End the process after the last exit handler, without the teardown of the interpreter.

    The teardown takes half a second. And a thread of gloo that releases its last tensor during the teardown aborts a
    finished run (github.com/pytorch/pytorch/pull/179291).
    """

    def end() -> None:
        atexit.unregister(end)
        atexit._run_exitfuncs()  # the other handlers; threads have ended already
        try:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):  # nobody reads it, or the disk of a log is full
                    stream.flush()
        except ValueError:
            return  # Python reports the error when it ends
        os._exit(code)

    atexit.register(end)
    sys.exit(code)
