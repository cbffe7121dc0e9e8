"""The folder of a run, where a run in it starts, and the file by which it is seen that nothing is left to do."""

import atexit
import json
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from data_utils.analysis.dataset_info import DatasetInfo
from inference.models import load_model
from runtime.console import say
from runtime.documents import read_json
from runtime.errors import CheckpointError, SettingsError
from runtime.files import lock_folder, remove_leftovers, replace_file, tolerate_write_errors
from runtime.launch import command_line
from runtime.settings import as_flags
from runtime.values import checked
from train_utils.checkpoints import MANIFEST, Checkpoint, checkpoint_folder, find_checkpoint
from train_utils.memory import MemoryLimit, read_memory_limit
from train_utils.reporting.samples import report_share
from train_utils.run_state import RunState
from train_utils.schedule import Clock, Schedule
from train_utils.settings.plan import check_axes, fill, patch_size, plan_run, run_length
from train_utils.settings.record import FINISHED_FILE, RunSettings, changed_flags, flags_as_json
from train_utils.settings.train_settings import NO_ENCODER, UNPLANNED, TrainSettings
from unet.config import UNetConfig
from unet.model import UNet


@dataclass(frozen=True)
class OpenedRun:
    """A run before its first step: its folder, its starting point, and its recorded memory limit.

    Args:
        checkpoint: the checkpoint that the run resumes from, if any.
        flags: the flags as they were typed.
    """

    output_dir: Path
    checkpoint: Checkpoint | None
    memory_limit: MemoryLimit
    flags: TrainSettings

    @cached_property
    def initial_model(self) -> UNet | None:
        """The model that a new run starts from, if any; each process that asks for it loads it once.

        A resumed run has none: the model may have changed or been deleted since.
        """
        if self.flags.init_from is None or self.checkpoint is not None:
            return None
        return load_model(self.flags.init_from)

    @property
    def trained_config(self) -> UNetConfig | None:
        """The config of the network that the run goes on with or starts from, if any."""
        if self.checkpoint is not None:
            return self.checkpoint.config
        return None if self.initial_model is None else self.initial_model.config

    def state(self) -> RunState:
        """Where the run stands before its first step here."""
        return RunState() if self.checkpoint is None else self.checkpoint.state

    def schedule(self, args: TrainSettings, info: DatasetInfo, processes: int) -> Schedule:
        """The schedule by the steps of the run or, with --max-minutes, by the clock.

        A resumed run whose steps were counted keeps them.
        """
        max_steps = args.max_steps
        if args.max_minutes and self.checkpoint is not None:
            max_steps = self.checkpoint.settings.total_steps or None  # 0 if the clock decides
        clock = Clock(
            None if max_steps else args.max_minutes,
            self.state().elapsed / 60_000,
            report_share=report_share(info, processes),
            spaces_evaluations=self.flags.eval_every is None,
        )
        return Schedule.from_args(args, len(info.train), max_steps, clock)

    @property
    def reads_places(self) -> bool:
        """Whether TIFFs with a place are read as rasters: the flag decides or, without it, the earlier run or model."""
        flags = self.flags
        if flags.place is not None:
            return flags.place
        config = self.trained_config
        needs_places = bool(flags.bands or flags.label_column) or flags.val_blocks is not None
        return config is None or config.preprocess.place or needs_places

    def settings(self, info: DatasetInfo) -> TrainSettings:
        """The flags, with values for those that are open: from the data, and from the checkpoint or the plan.

        The plan of a new run is printed.
        """
        args = replace(self.flags, task=info.config.task, place=info.config.reads_places)
        if self.checkpoint is not None:
            args = _with_recorded_plan(args, self.checkpoint.settings.flags)
        elif args.plan == "auto":
            args = plan_run(info, args)
            _say_choices("plan", self.flags, args, UNPLANNED)
        elif info.train.records.dims == 3 and not args.crop_size:  # no default suits volumes
            trained = self.trained_config
            preprocess = None if trained is None else trained.preprocess
            args = replace(args, crop_size=patch_size(info, run_length(args.max_minutes), preprocess))
            _say_choices("patches", self.flags, args, ["crop_size"])
        check_axes(info, args)
        return args

    def resume_line(self) -> str:
        """The command that goes on with this run, quoted for a shell."""
        added = [] if self.flags.output_dir else ["--output-dir", str(self.output_dir)]
        if self.flags.resume != "auto":
            added += ["--resume", "auto"]
        return command_line(added)

    @property
    def largest_micro_batch(self) -> int | None:
        """The largest micro-batch that has fitted before, if any."""
        if self.memory_limit.micro_batch_size:
            return self.memory_limit.micro_batch_size
        return None if self.checkpoint is None else self.checkpoint.settings.micro_batch_size


def _with_recorded_plan(args: TrainSettings, recorded: dict[str, Any]) -> TrainSettings:
    """The settings, with the recorded values of the planned ones that are open."""
    planned = {name: recorded[name] for name in UNPLANNED if recorded.get(name) is not None}
    values = UNPLANNED | checked(TrainSettings, planned)
    if args.encoder == NO_ENCODER:  # if the run has an encoder, a later check of --resume refuses this
        values |= {"encoder_weights": None, "freeze_encoder": None}
    return fill(args, values)


def _say_choices(kind: str, flags: TrainSettings, args: TrainSettings, names: Iterable[str]) -> None:
    """Print the settings of these names that the flags have left open."""
    chosen = {name: getattr(args, name) for name in names if getattr(flags, name) is None}
    say(f"{kind}: {as_flags(chosen)}")


def open_run(flags: TrainSettings) -> OpenedRun | None:
    """Make or find the folder of a run, lock it, and read its checkpoint and memory limit; call it on one process.

    None, and a line, if the run has finished and the flags ask for nothing more.
    """
    folder = make_run_dir(flags.output_dir, flags.resume)
    lock_folder(folder)
    remove_leftovers(folder, seconds=0)
    remove_leftovers(folder / "checkpoints", seconds=0)
    line = finished_line(folder, flags) if flags.resume == "auto" else None
    if line:
        say(line)
        return None
    return OpenedRun(folder, find_checkpoint(flags.resume, folder / "checkpoints"), read_memory_limit(folder), flags)


def make_run_dir(path: Path | None, resume: str | None) -> Path:
    """Make the folder of a run, by default runs/<time>; without `resume`, a folder that is not empty is refused.

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
