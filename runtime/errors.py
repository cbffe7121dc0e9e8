"""Errors that a user can fix: each is a UserError, which `run_script` prints as one line. Other errors are bugs."""

from runtime.redact import printable, redact, shown

# the text of an error contains this if a loader's worker process passed it on
WRAPPED_TRACEBACK = "Traceback (most recent call last)"


def one_line(error: BaseException, limit: int = 300) -> str:
    """The text of an error, redacted, in one line of at most `limit` characters; its type if it has no text."""
    return printable(" ".join(redact(str(error)).split()))[:limit] or type(error).__name__


class UserError(ValueError):
    """A user's mistake in one line, redacted: the value found, its place, and the remedy.

    Attributes:
        exit_code: the exit code of a script that ends with this error.
        seen_by_all: whether all processes raise it, so that only the first one prints it.
    """

    exit_code = 1
    seen_by_all = False

    def __str__(self) -> str:
        text = super().__str__()
        if WRAPPED_TRACEBACK in text:  # its last line is "module.Error: message"
            text = text.strip().splitlines()[-1].partition(": ")[2]
        return shown(text)


class UsageError(UserError):
    """A mistake on the command line."""

    exit_code = 2
    seen_by_all = True


class SettingsError(UserError):
    """Flags that do not fit each other, the data, the memory or the environment."""

    seen_by_all = True


class LaunchError(UserError):
    """A launch that does not fit this machine or this script."""

    seen_by_all = True


class DataError(UserError):
    """A mistake in the images, the masks or their names."""


class ImageError(DataError):
    """An image file or array that cannot be used."""


class ModelError(UserError):
    """A model that cannot be loaded, exported or combined."""

    seen_by_all = True


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, or belongs to another run."""

    seen_by_all = True


class TrainingError(UserError):
    """Training cannot go on: the gradient is not finite."""

    seen_by_all = True


class MemoryShortage(UserError):
    """The memory of the device or the machine is full; the message says what to reduce."""


class WriteError(UserError):
    """Results that could not be written to disk."""


class UserWarningLine(UserWarning):
    """A warning for the user, printed as one line without the code that raised it."""
