"""The record of a run's settings and environment: run.json, which each checkpoint contains too."""

import json
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading.batch_sampler import BatchSplit
from runtime.console import counted
from runtime.distributed import on_main
from runtime.documents import as_json, read_json
from runtime.errors import CheckpointError
from runtime.files import replace_file
from runtime.launch import describe_profile
from runtime.redact import redact, redact_all
from runtime.values import Count, checked, from_json
from tasks.classes.loss import Classes
from train_utils.settings.starting_point import ARCHITECTURE
from train_utils.settings.train_settings import NOT_COMPARED, TrainSettings
from unet.backbone import encoder_name
from unet.config import NetworkAxes, UNetConfig

RECORD_FILE = "run.json"
FINISHED_FILE = "finished.json"  # a run writes this file last: without it, a resumed run repeats its end
PACKAGES = ("torch", "accelerate", "datasets", "safetensors", "huggingface_hub", "pillow", "numpy")
CONTENT_ENTRY = "content of the data set"
LATER_ENTRIES = (CONTENT_ENTRY, "classes")  # of the identity: some runs of earlier versions do not have them
# values of flags and identity that all runs of earlier versions had, unrecorded
UNRECORDED: dict[str, Any] = {"task": Classes.name, "output_stride": 1}
UNRECORDED_FLAGS = UNRECORDED | {"draft": True, "place": False}  # values of flags in runs of earlier versions


@dataclass(frozen=True)
class RunSettings:
    """Every resolved setting of a run, redacted: the content of run.json.

    Args:
        flags: the flags of train.py by name, with the values that the plan chose.
        profile: the settings of the launch profile.
        identity: the settings that give a saved state its meaning: a run that differs in them cannot resume from it.
            Runs of earlier versions lack some.
        encoder: Hub id or folder name, with its license.
        run: versions, platform, command and time.
    """

    flags: dict[str, Any]
    profile: dict[str, str | int] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    encoder: str | None = None
    total_steps: Count = 0
    micro_batch_size: Count = 0
    accumulation: Count = 0
    num_workers: Count = 0
    run: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, run: Path) -> "RunSettings":
        """The record of a run that is named by its folder or its run.json. Raises OSError, and ValueError."""
        return cls.from_json(read_json(run / RECORD_FILE if run.is_dir() else run))

    def write(self, folder: Path) -> None:
        """Write run.json into the folder of a run. Raises OSError."""
        with replace_file(folder / RECORD_FILE) as file:
            file.write((json.dumps(asdict(self), indent=2) + "\n").encode())

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "RunSettings":
        """The settings from the content of run.json. Raises ValueError for content that no run records."""
        settings = from_json(cls, value, "it")
        flags = UNRECORDED_FLAGS | redact_all(settings.flags)
        checked(TrainSettings, flags)
        return replace(settings, flags=flags, identity=UNRECORDED | settings.identity)


def compare_settings(saved: RunSettings, current: RunSettings) -> list[str]:
    """A line for each setting that changed since the checkpoint; CheckpointError if the runs differ in `identity`.

    A flag that did not exist when the run was recorded counts as unchanged.
    """
    for key, value in current.identity.items():
        before = saved.identity.get(key)
        if before == value or (not before and key in LATER_ENTRIES):
            continue
        raise CheckpointError(
            f"--resume: the checkpoint's {key} is {before}, this run's is {value}; give the same flags and data,"
            " or start a new run, with --init-from from these weights (docs/faq.md)"
        )
    notes = []
    minutes = current.flags.get("max_minutes") or 0
    minutes_before = saved.flags.get("max_minutes") or 0
    if saved.total_steps != current.total_steps:
        now = counted(current.total_steps, "step") if current.total_steps else f"{minutes} minutes"
        before = saved.total_steps or f"{minutes_before} minutes"
        notes.append(
            f"the run is now {now} long instead of {before}: the learning rate follows the schedule of the new length"
        )
    by_clock = not current.total_steps or current.flags.get("epochs")  # beside minutes, the plan leaves --epochs open
    if by_clock and minutes > minutes_before:
        notes.append(f"the run has now {minutes} minutes instead of {minutes_before or 'no limit'}")
    for name, value in current.flags.items():
        if name not in NOT_COMPARED and saved.flags.get(name, value) != value:
            notes.append(f"{name} was {saved.flags[name]} and is now {value}")
    return notes


def record_settings(
    accelerator: Accelerator,
    args: TrainSettings,
    info: DatasetInfo,
    config: UNetConfig,
    *,
    output_dir: Path,
    batch_split: BatchSplit,
    total_steps: int,
    num_workers: int,
) -> RunSettings:
    """The record of all settings of a run, made by one process.

    Args:
        config: the config of the network that trains.
        num_workers: the number of loader processes of each process.
    """
    model_settings = {name: getattr(config, name) for name in ARCHITECTURE} | {"draft": config.preprocess.draft}
    return on_main(
        accelerator,
        lambda: RunSettings(
            flags=flags_as_json(args) | redact_all(model_settings | {"output_dir": str(output_dir)}),
            profile=redact_all(describe_profile(accelerator)),
            identity=redact_all(_identity(args, info, config)),
            encoder=redact_all(config.encoder and encoder_name(config.encoder)),
            total_steps=total_steps,
            micro_batch_size=batch_split.micro_batch_size,
            accumulation=batch_split.accumulation,
            num_workers=num_workers,
            run=redact_all(describe_environment()),
        ),
    )


def _identity(args: TrainSettings, info: DatasetInfo, config: UNetConfig) -> dict[str, Any]:
    """The settings that give a saved state its meaning."""
    return {
        "seed": args.seed,  # first, since it chooses the validation images too: another data set follows from it
        "task": info.config.task,
        "classes": info.reader.identity,
        "in_channels": info.channels,
        **as_json({name: getattr(config, name) for name in ARCHITECTURE + NetworkAxes._fields}),
        # only the name counts: the encoder may have moved since, and the run has its weights
        "encoder": args.encoder_source and Path(args.encoder_source).name,
        "freeze_encoder": bool(args.freeze_encoder),
        "deep supervision": args.deep_supervision,
        "data set": info.fingerprint(),
        CONTENT_ENTRY: info.content,
        "batch size": args.batch_size,
        "optimizer": args.optimizer,  # another optimizer cannot use its state
    }


def describe_environment() -> dict[str, str]:
    """Versions, platform, command and git commit, which are needed beside the flags to repeat a run."""
    describe = ["git", "describe", "--always", "--dirty"]
    try:
        git = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout
    except OSError:  # no git here
        git = ""
    return {
        "command": shlex.join(map(redact, sys.argv)),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: version(package) for package in PACKAGES},
        "git_commit": git.strip() or "unknown",
    }


def flags_as_json(args: TrainSettings) -> dict[str, Any]:
    """The flags of a script, redacted, with the types that they have when JSON is read back."""
    return redact_all(as_json(vars(args)))
