"""The record of a run that has made all its steps, by which a resumed run sees that nothing is left to do."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtime.documents import check_types, read_json
from runtime.files import replace_file, tolerate_write_errors
from runtime.redact import redact_all
from train_utils.checkpoints.find import checkpoint_folder
from train_utils.schedule import Schedule
from train_utils.settings.record import FINISHED_FILE, UNRECORDED, flags_as_json
from train_utils.settings.train_settings import NOT_COMPARED, UNPLANNED, TrainSettings


@dataclass(frozen=True)
class FinishedRun:
    """The content of a run's finished.json.

    Args:
        step: the last step that was made.
        total_steps: the planned number of steps.
        flags: the flags by name, redacted.
    """

    step: int
    total_steps: int
    steps_per_epoch: int
    flags: dict[str, Any]

    @property
    def ran_out_of_patience(self) -> bool:
        """Whether the run ended before its last planned step, since its score became no better."""
        return self.step < self.total_steps

    def has_settings(self, args: TrainSettings) -> bool:
        """Whether the flags ask for the settings of this run; the flags of its length and place are not compared."""
        flags = flags_as_json(args)
        # the flags that are open now: the run took their values from the plan or from the data
        open_flags = [name for name in (*UNPLANNED, "task", "place") if flags[name] is None]
        not_compared = (*NOT_COMPARED, *open_flags)
        for name, value in flags.items():
            # a flag that did not exist yet when the run was recorded counts as unchanged
            if name not in not_compared and self.flags.get(name, value) != value:
                return False
        return True

    def is_shorter_than(self, args: TrainSettings) -> bool:
        """Whether the flags ask for more steps or minutes than this run had planned."""
        total_steps = args.max_steps or (args.epochs or 0) * self.steps_per_epoch
        has_more_steps = total_steps > self.total_steps and not args.max_minutes
        has_more_minutes = (args.max_minutes or 0) > (self.flags.get("max_minutes") or math.inf)
        return has_more_steps or has_more_minutes


def mark_finished(folder: Path, args: TrainSettings, schedule: Schedule, step: int) -> None:
    """Mark the run as finished; call it when all is written and published."""
    total_steps = step if schedule.clock.budget else schedule.total_steps
    run = FinishedRun(step, total_steps, schedule.steps_per_epoch, flags_as_json(args))
    with tolerate_write_errors(FINISHED_FILE), replace_file(folder / FINISHED_FILE) as file:
        file.write(json.dumps(asdict(run), indent=2).encode())


def finished_line(folder: Path, args: TrainSettings) -> str | None:
    """The line that the run in `folder` has finished; None if the flags ask for other settings or more steps."""
    run = _read_finished(folder)
    if run is None or not run.has_settings(args):
        return None
    if run.is_shorter_than(args) and not run.ran_out_of_patience:
        return None
    remedy = "a larger --patience" if run.ran_out_of_patience else "more --epochs, --max-steps or --max-minutes"
    position = f"step {run.step} of {run.total_steps}"
    return f"{folder}: the run has finished, at {position}; to continue it, give {remedy}"


def _read_finished(folder: Path) -> FinishedRun | None:
    """The content of finished.json; None if the file or the last checkpoint of the run is missing."""
    try:
        record = redact_all(read_json(folder / FINISHED_FILE))
        check_types(record, FinishedRun)
        run = FinishedRun(**record | {"flags": UNRECORDED | record["flags"]})
    except (OSError, ValueError, LookupError, TypeError):  # LookupErrors and TypeErrors are of other entries
        return None
    if not checkpoint_folder(folder / "checkpoints", run.step).is_dir():  # removed to go on from an earlier one
        return None
    return run
