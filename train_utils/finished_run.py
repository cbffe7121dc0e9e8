"""The file that a run writes last, by which a resumed run sees that nothing is left to do."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtime.documents import read_json
from runtime.files import replace_file, tolerate_write_errors
from runtime.redact import redact_all
from runtime.values import Count, from_json
from train_utils.checkpoints.checkpoint import checkpoint_folder
from train_utils.schedule import Schedule
from train_utils.settings.record import FINISHED_FILE, UNRECORDED, changed_flags, flags_as_json
from train_utils.settings.train_settings import TrainSettings


@dataclass(frozen=True)
class FinishedRun:
    """The content of a run's finished.json.

    Args:
        step: the last step that was made.
        total_steps: the planned number of steps.
        flags: the flags by name, redacted.
    """

    step: Count
    total_steps: Count
    steps_per_epoch: Count
    flags: dict[str, Any]

    def is_shorter_than(self, args: TrainSettings) -> bool:
        """Whether the flags ask for more steps or minutes than this run had planned."""
        if args.max_minutes:
            return args.max_minutes > (self.flags.get("max_minutes") or math.inf)
        total_steps = args.max_steps or (args.epochs or 0) * self.steps_per_epoch
        return total_steps > self.total_steps


def mark_finished(folder: Path, args: TrainSettings, schedule: Schedule, step: int) -> None:
    """Mark the run as finished; call it when all is written and published."""
    total_steps = step if schedule.clock.budget else schedule.total_steps
    run = FinishedRun(step, total_steps, schedule.steps_per_epoch, flags_as_json(args))
    with tolerate_write_errors(FINISHED_FILE), replace_file(folder / FINISHED_FILE) as file:
        file.write(json.dumps(asdict(run), indent=2).encode())


def finished_line(folder: Path, args: TrainSettings) -> str | None:
    """The line that the run in `folder` has finished; None if the flags ask for other settings or more steps."""
    try:
        run = from_json(FinishedRun, read_json(folder / FINISHED_FILE), "it")
    except (OSError, ValueError):
        return None
    if not checkpoint_folder(folder / "checkpoints", run.step).is_dir():  # removed to go on from an earlier one
        return None
    if changed_flags(UNRECORDED | redact_all(run.flags), flags_as_json(args)):
        return None
    remedy = "a larger --patience"
    if run.step == run.total_steps:
        if run.is_shorter_than(args):
            return None
        remedy = "more --epochs, --max-steps or --max-minutes"
    return f"{folder}: the run has finished, at step {run.step} of {run.total_steps}; to continue it, give {remedy}"
