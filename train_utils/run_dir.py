"""The folder of a run, and what is written down about the run itself."""

import atexit
import platform
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from runtime.errors import CheckpointError, SettingsError

PACKAGES = ("torch", "accelerate", "datasets", "safetensors", "huggingface_hub", "pillow", "numpy")


def make_run_dir(path: Path | None, resume: str | None) -> Path:
    """Make the folder of a run, by default runs/<time>; without `resume`, one that holds anything already is refused.

    A run resumed from a checkpoint goes on in the folder that the checkpoint is in, unless another is given. What is
    still empty at the end is removed: a run that failed at its start can be given its folder again.
    """
    if resume and resume != "auto":
        if not (Path(resume) / "manifest.json").is_file():
            raise CheckpointError(
                f"--resume {resume} is no checkpoint; give a step-... folder, or auto with --output-dir"
            )
        path = path or Path(resume).resolve().parent.parent
    path = path or Path("runs") / time.strftime("%Y-%m-%d-%H%M%S")
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not resume)):
        raise SettingsError(
            f"--output-dir {path} is not an empty folder; choose another, so that nothing is overwritten"
        )
    new = [folder for folder in (path / "checkpoints", path) if not folder.exists()]
    try:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--output-dir {path} cannot be made: {error.strerror}") from error
    atexit.register(_remove_empty, new)
    return path


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def describe_run() -> dict[str, str]:
    """Versions, platform, command and git commit: what a run needs beside its flags to be repeated."""
    describe = ["git", "describe", "--always", "--dirty"]
    try:
        git = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout
    except OSError:  # no git here
        git = ""
    return {
        "command": " ".join(sys.argv),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: version(package) for package in PACKAGES},
        "git_commit": git.strip() or "unknown",
    }
