"""The folder of a run, and the record of its settings and environment."""

import atexit
import json
import math
import platform
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from data_utils.loading.batch_sampler import BatchSplit
from inference.models import load_model
from runtime.console import say
from runtime.errors import CheckpointError, SettingsError
from runtime.files import replaced_file, tolerated
from runtime.redact import redact, redact_all
from train_utils.checkpoints.find import (
    FINISHED,
    LENGTH_AND_PLACE,
    UNRECORDED,
    FoundCheckpoint,
    checkpoint_folder,
    find_checkpoint,
)
from train_utils.microbatch import MemoryLimit, memory_limit
from train_utils.schedule import Schedule
from train_utils.settings.plan import DEFAULTS, as_flags, check_axes, patch_size, plan_settings
from train_utils.settings.starting_point import ARCHITECTURE, AXES
from unet.backbone import encoder_name
from unet.config import UNetConfig

CREDENTIALS = "credentials_left_out"  # of run.json and checkpoints: flags whose URL was redacted
PACKAGES = ("torch", "accelerate", "datasets", "safetensors", "huggingface_hub", "pillow", "numpy")


class RunStart(NamedTuple):
    """The folder of a run, the checkpoint that it goes on from, and what it has learnt about memory.

    Args:
        finished: a line where there is nothing left to do, else None.
    """

    output_dir: Path
    checkpoint: FoundCheckpoint
    limit: MemoryLimit
    finished: str | None = None

    def total_steps(self, args: Namespace) -> int | None:
        """--max-steps; with --max-minutes the steps that a resumed run measured at its start; None if not known yet."""
        return self.checkpoint.state.get("total_steps") if args.max_minutes else args.max_steps

    def plan(self, args: Namespace, info: DatasetInfo) -> tuple[Namespace, DatasetInfo]:
        """The flags, where not given with the values of the checkpoint or the plan, and `info` changed accordingly."""
        if args.plan == "auto":
            if self.checkpoint.path is None:
                settings = plan_settings(info, vars(args))
                timed = args.max_steps or args.max_minutes  # which says how long the run is
                say(f"plan: {as_flags({k: v for k, v in settings.items() if not (timed and k == 'epochs')})}")
            else:
                saved = self.checkpoint.state["flags"]
                settings = {name: saved[name] for name in DEFAULTS if getattr(args, name) is None}
            args = Namespace(**vars(args) | settings)
        elif info.train.records.dims == 3 and not args.crop_size:  # which no default suits
            source = load_model(args.init_from).config.preprocess if args.init_from else None
            args = Namespace(**vars(args) | {"crop_size": patch_size(info, args.max_minutes or math.inf, source)})
            say(f"patches: --crop-size {' '.join(map(str, args.crop_size))}")
        check_axes(info, vars(args))
        return args, replace(info, config=DataConfig.from_args(args))

    @property
    def largest_micro_batch(self) -> int | None:
        """The largest micro-batch that has fitted before, if any."""
        return self.limit.micro_batch_size or self.checkpoint.state.get("micro_batch_size")


def open_run(args: Namespace) -> RunStart:
    """Make or find the folder of a run, and what is in it already; for one process."""
    folder = make_run_dir(args.output_dir, args.resume)
    finished = finished_line(folder, args) if args.resume == "auto" else None
    checkpoint = find_checkpoint(None if finished else args.resume, folder / "checkpoints")
    say_credentials(args, checkpoint.state)
    return RunStart(folder, checkpoint, memory_limit(folder), finished)


def mark_finished(folder: Path, args: Namespace, schedule: Schedule, step: int) -> None:
    """Mark the run as finished; call it when all is written and published."""
    content = {
        "step": step,
        "total_steps": schedule.total_steps,
        "steps_per_epoch": schedule.steps_per_epoch,
        "flags": flags_as_json(args),
    }
    with tolerated(FINISHED), replaced_file(folder / FINISHED) as file:
        file.write(json.dumps(content, indent=2).encode())


def finished_line(folder: Path, args: Namespace) -> str | None:
    """The line that the run in `folder` has finished; None if the flags ask for other settings or more steps."""
    try:
        done = redact_all(json.loads((folder / FINISHED).read_bytes()))
    except (OSError, ValueError):
        return None
    if not isinstance(done, dict) or not {"step", "total_steps", "steps_per_epoch", "flags"} <= done.keys():
        return None
    if not checkpoint_folder(folder / "checkpoints", done["step"]).is_dir():  # removed to go on from an earlier one
        return None
    flags, flags_done = flags_as_json(args), UNRECORDED | done["flags"]
    open_ones = [name for name in DEFAULTS if flags[name] is None]  # the run has planned them
    if any(flags_done.get(k) != v for k, v in flags.items() if k not in (*LENGTH_AND_PLACE, *open_ones)):
        return None
    out_of_patience = done["step"] < done["total_steps"]
    asked = args.max_steps or (args.epochs or 0) * done["steps_per_epoch"]
    if asked > done["total_steps"] and not (args.max_minutes or out_of_patience):
        return None
    more = "a larger --patience" if out_of_patience else "more --epochs or --max-steps"
    at = f"step {done['step']} of {done['total_steps']}"
    return f"{folder}: the run has finished, at {at}; to continue it, give {more}"


def flags_as_json(args: Namespace) -> dict[str, Any]:
    """The flags of a script as JSON gives them back, redacted."""
    return redact_all(_unredacted(args))


def flags_with_credentials(args: Namespace) -> list[str]:
    """The flags that hold a URL with user, password or query, which are never written."""
    return [name for name, value in _unredacted(args).items() if redact_all(value) != value]


def say_credentials(args: Namespace, record: dict[str, Any]) -> None:
    """Print where user, password and query come from, of the URLs in a run's record that had them."""
    flags, given = flags_as_json(args), flags_with_credentials(args)
    for name in record.get(CREDENTIALS, []):
        flag = "--" + name.replace("_", "-")
        if flags[name] != record["flags"][name]:  # another URL
            continue
        if name in given:
            say(f"{flag}: user, password and query of the URL are those of this command; a run does not record them")
        else:
            say(
                f"{flag}: the run began with a user, password or query in the URL, which it has not recorded;"
                " give them again if the data cannot be read"
            )


def _unredacted(args: Namespace) -> dict[str, Any]:
    return json.loads(json.dumps(vars(args), default=str))


def make_run_dir(path: Path | None, resume: str | None) -> Path:
    """Make the folder of a run, by default runs/<time>; without `resume`, one that holds anything already is refused.

    A run resumed from a checkpoint continues in the folder of the checkpoint, unless another is given. Folders that are
    still empty at the end are removed, so that a run that failed at its start can use its folder again.
    """
    if resume and resume != "auto":
        if not (Path(resume) / "manifest.json").is_file():
            raise CheckpointError(
                f"--resume {resume} is not a checkpoint; give a step-... folder, or auto with --output-dir"
            )
        path = path or Path(resume).resolve().parent.parent
    path = path or Path("runs") / time.strftime("%Y-%m-%d-%H%M%S")
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not resume)):
        raise SettingsError(
            f"--output-dir {path} is not an empty folder; choose another, or continue its run with --resume auto"
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


def run_settings(
    args: Namespace,
    output_dir: Path,
    profile: dict[str, str | int],
    info: DatasetInfo,
    model: UNetConfig,
    split: BatchSplit,
    schedule: Schedule,
    num_workers: int,
) -> dict[str, Any]:
    """Every resolved setting of a run, redacted: what run.json and each checkpoint hold.

    `identity` is what gives a saved state its meaning: a run that differs in it cannot go on from it.
    """
    architecture = {name: getattr(model, name) for name in ARCHITECTURE}
    identity = {
        "task": info.config.task,
        "classes": [*map(str, info.reader.class_map.values)] if info.reader.class_map else [],
        "in_channels": info.channels,
        **architecture,
        **json.loads(json.dumps({name: getattr(model, name) for name in AXES})),
        "encoder": args.encoder and Path(args.encoder).name,  # wherever it is now: its weights are the run's
        "freeze_encoder": bool(args.freeze_encoder),
        "deep supervision": args.deep_supervision,
        "data set": info.fingerprint(),
        "batch size": args.batch_size,
        "seed": args.seed,
        "optimizer": args.optimizer,  # its state is of no use to another
    }
    credentials = flags_with_credentials(args)
    settings = {
        "flags": flags_as_json(args) | architecture | {"output_dir": str(output_dir)},
        "profile": profile,
        "identity": identity,
        "encoder": model.encoder and encoder_name(model.encoder),
        "total_steps": schedule.total_steps,
        "micro_batch_size": split.micro_batch_size,
        "accumulation": split.accumulation,
        "num_workers": num_workers,
        "run": describe_run(),
    }
    return redact_all(settings) | ({CREDENTIALS: credentials} if credentials else {})


def describe_run() -> dict[str, str]:
    """Versions, platform, command and git commit: what a run needs beside its flags to be repeated."""
    describe = ["git", "describe", "--always", "--dirty"]
    try:
        git = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout
    except OSError:  # no git here
        git = ""
    return {
        "command": " ".join(map(redact, sys.argv)),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: version(package) for package in PACKAGES},
        "git_commit": git.strip() or "unknown",
    }
