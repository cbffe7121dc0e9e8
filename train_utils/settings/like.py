"""--like: a new run repeats the settings of a recorded one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from runtime.cli import Arguments
from runtime.console import say
from runtime.values import checked, field_types
from train_utils.settings.record import (
    PACKAGES,
    RunSettings,
    describe_environment,
    flags_as_json,
)
from train_utils.settings.starting_point import ARCHITECTURE, ENCODER_FLAGS
from train_utils.settings.train_settings import NOT_REPEATED, TrainSettings

# groups of settings: if the command line has one of a group, no other of this group is repeated
ALTERNATIVES = ({"epochs", "max_steps", "max_minutes"}, {"image_size", "scale"}, {"val_split", "val_fraction", "fold"})


def read_record(path: Path | None, parser: Arguments) -> RunSettings | None:
    """The run.json that --like names, as a file or by its folder; a mistake ends the process with one line."""
    if path is None:
        return None
    try:
        record = RunSettings.read(path)
    except (OSError, ValueError) as error:
        parser.error(f"--like {path} cannot be read ({getattr(error, 'strerror', None) or error})")
    unknown = sorted(record.flags.keys() - field_types(TrainSettings).keys())
    if unknown:
        parser.error(f"--like {path} holds flags that are not known here: {', '.join(unknown)}")
    if not record.flags.get("max_minutes"):
        return record
    if record.total_steps == 0:  # the number of steps decides what the run computed
        parser.error(f"--like {path}: the run by the clock has not ended, so nobody knows its steps")
    return replace(record, flags=record.flags | {"max_minutes": None, "max_steps": record.total_steps})


def repeated_settings(record: RunSettings, typed: dict[str, Any]) -> dict[str, Any]:
    """The settings of a recorded run, without NOT_REPEATED and without those that the command line replaces."""
    dropped = {*NOT_REPEATED, *typed}
    for group in ALTERNATIVES:
        if group & typed.keys():
            dropped |= group
    if typed.keys() & {"init_from", "encoder"}:  # a model and an encoder have an architecture
        dropped.update(("init_from", "encoder"), ENCODER_FLAGS, ARCHITECTURE)
    repeated = {}
    for name, value in record.flags.items():
        if name not in dropped and value not in (None, []):
            repeated[name] = value
    return checked(TrainSettings, repeated)


def say_differences(args: TrainSettings, record: RunSettings) -> None:
    """Print which flags and which versions differ from the recorded run."""
    changes = []
    for name, value in flags_as_json(args).items():
        before = record.flags.get(name)
        if name not in NOT_REPEATED and value != before:
            changes.append(f"{name} {value} (was {before})")
    summary = f"but {', '.join(changes)}" if changes else "without a change"
    say(f"like {args.like}, {summary}")
    versions = []
    for name, value in describe_environment().items():
        is_version = name in PACKAGES or name in ("python", "git_commit")
        if is_version and record.run.get(name, value) != value:
            versions.append(f"{name} {record.run[name]} (here {value})")
    if versions:
        say(f"it was recorded with {', '.join(versions)}")
