"""--like: a new run repeats the settings of a recorded one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from runtime.cli import Arguments
from runtime.console import say
from runtime.documents import read_json
from runtime.redact import redact_all
from runtime.settings import flag_of
from runtime.values import checked, field_types
from train_utils.settings.record import (
    PACKAGES,
    UNRECORDED_FLAGS,
    RunSettings,
    describe_environment,
    flags_as_json,
    record_file,
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
        content = read_json(record_file(path))
        record = RunSettings.from_json(content)
    except OSError as error:
        parser.error(f"--like {path} cannot be read ({error.strerror})")
    except ValueError as error:
        parser.error(f"--like {path} cannot be read ({error})")
    if "flags" not in content:
        parser.error(f"--like {path} is no record of a run: it holds no flags; give the run.json of an output folder")
    unknown = sorted(record.flags.keys() - field_types(TrainSettings).keys())
    if unknown:
        parser.error(f"--like {path} holds flags that are not known here: {', '.join(unknown)}")
    # earlier versions have recorded the query of a URL, which is needed
    record = replace(record, flags=UNRECORDED_FLAGS | content["flags"])
    if record.flags.get("max_minutes"):  # the number of steps decides what the run computed
        if record.total_steps == 0:
            parser.error(f"--like {path}: the run by the clock has not ended, so nobody knows its steps")
        steps = {"max_minutes": None, "max_steps": record.total_steps}
        record = replace(record, flags=record.flags | steps)
    return record


def repeated_settings(record: RunSettings, typed: dict[str, Any], parser: Arguments) -> dict[str, Any]:
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
    for name in record.credentials_left_out:
        if name in repeated:
            flag = flag_of(name)
            parser.error(
                f"--like: the URL of {flag} {repeated[name]} had a query, which a run does not record; give {flag}"
                " again, with its query"
            )
    return checked(TrainSettings, repeated)


def say_differences(args: TrainSettings, record: RunSettings) -> None:
    """Print which flags and which versions differ from the recorded run."""
    flags = redact_all(record.flags)
    changes = []
    for name, value in flags_as_json(args).items():
        if name not in NOT_REPEATED and value != flags.get(name):
            changes.append(f"{name} {value} (was {flags.get(name)})")
    summary = f"but {', '.join(changes)}" if changes else "without a change"
    say(f"like {args.like}, {summary}")
    versions = []
    for name, value in describe_environment().items():
        is_version = name in PACKAGES or name in ("python", "git_commit")
        if is_version and record.run.get(name, value) != value:
            versions.append(f"{name} {record.run[name]} (here {value})")
    if versions:
        say(f"it was recorded with {', '.join(versions)}")
