"""Errors that a user can mend: each is a UserError, which `cli.run_script` prints as one line; all others are bugs."""

from runtime.redact import printable, redact

# stands in the text of an error that a loader's worker process hands on
WRAPPED_TRACEBACK = "Traceback (most recent call last)"


def one_line(error: BaseException, limit: int = 300) -> str:
    """The text of an error, redacted, in one line of at most `limit` characters; its type where it has no text."""
    return printable(" ".join(redact(str(error)).split()))[:limit] or type(error).__name__


class UserError(ValueError):
    """A user's mistake in one line, redacted: what was seen, where, and what to do.

    Attributes:
        exit_code: exit code of the script that this error ends.
        seen_by_all: all processes raise it, so only the first one prints it; else the process that raises it does.
    """

    exit_code = 1
    seen_by_all = False

    def __str__(self) -> str:
        text = super().__str__()
        if WRAPPED_TRACEBACK in text:  # its last line is "module.Error: message"
            text = text.strip().splitlines()[-1].partition(": ")[2]
        return printable(redact(text))


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
    """Something is wrong with the images, the masks or how they were named."""


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
