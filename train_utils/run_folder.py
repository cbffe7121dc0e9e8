"""The folder of a run: made, locked and swept; and the file by which it is seen that nothing is left to do."""

import atexit
import json
import math
import time
from contextlib import suppress
from pathlib import Path

from runtime.documents import read_json
from runtime.errors import CheckpointError, SettingsError
from runtime.files import lock_folder, remove_leftovers, replace_file, tolerate_write_errors
from train_utils.checkpoints import MANIFEST, checkpoint_folder
from train_utils.settings.record import FINISHED_FILE, RunSettings, changed_flags, flags_as_json
from train_utils.settings.train_settings import TrainSettings


def open_folder(path: Path | None, resume: str | None) -> Path:
    """Make and lock the folder of a run, by default runs/<time>; one that is not empty is refused without `resume`.

    A run resumed from a checkpoint continues in the folder of the checkpoint, unless another is given. Folders that are
    still empty at the end are removed, so that a run that failed at its start can use its folder again.
    """
    if resume and resume != "auto":
        if not (Path(resume) / MANIFEST).is_file():
            raise CheckpointError(
                f"--resume {resume} is not a checkpoint; give a step-... folder, or auto with --output-dir"
            )
        path = path or Path(resume).resolve().parent.parent
    path = path or Path("runs") / time.strftime("%Y-%m-%d-%H%M%S")
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not resume)):
        raise SettingsError(
            f"--output-dir {path} is not an empty folder; choose another, or continue its run with --resume auto"
        )
    new_folders = [folder for folder in (path / "checkpoints", path) if not folder.exists()]
    try:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--output-dir {path} cannot be made: {error.strerror}") from error
    atexit.register(_remove_empty, new_folders)
    lock_folder(path)
    remove_leftovers(path, seconds=0)
    remove_leftovers(path / "checkpoints", seconds=0)
    return path


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # the folder is not empty
            folder.rmdir()


def mark_finished(folder: Path, step: int) -> None:
    """Mark the run as finished at its last step; call it when all is written and published."""
    with tolerate_write_errors(FINISHED_FILE), replace_file(folder / FINISHED_FILE) as file:
        file.write(json.dumps({"step": step}).encode())


def _is_longer(args: TrainSettings, record: RunSettings) -> bool:
    """Whether the flags ask for more steps, epochs or minutes than a recorded run had planned."""
    if args.max_minutes:
        return args.max_minutes > (record.flags.get("max_minutes") or math.inf)
    if args.max_steps:
        return args.max_steps > record.total_steps
    return (args.epochs or 0) > (record.flags.get("epochs") or 0)


def finished_line(folder: Path, args: TrainSettings) -> str | None:
    """The line that the run in `folder` has finished; None if the flags ask for other settings or more steps."""
    try:
        step = read_json(folder / FINISHED_FILE).get("step")
        record = RunSettings.read(folder)
    except (OSError, ValueError):
        return None
    # the last checkpoint may have been removed, to go on from an earlier one
    if type(step) is not int or not checkpoint_folder(folder / "checkpoints", step).is_dir():
        return None
    typed = {name: value for name, value in flags_as_json(args).items() if value is not None}
    if changed_flags(record.flags, typed):
        return None
    remedy = "a larger --patience"
    if step == record.total_steps:
        if _is_longer(args, record):
            return None
        remedy = "more --epochs, --max-steps or --max-minutes"
    return f"{folder}: the run has finished, at step {step} of {record.total_steps}; to continue it, give {remedy}"
