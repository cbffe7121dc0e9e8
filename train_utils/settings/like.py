"""--like: the flags of a recorded run are repeated on the command line of a new run."""

import argparse
import json
import sys
from dataclasses import fields
from typing import Any, NamedTuple

from runtime import cli as arg
from runtime.console import say
from runtime.documents import as_json, read_json
from runtime.redact import redact_all, shorten
from train_utils.settings.record import (
    CREDENTIALS,
    PACKAGES,
    UNRECORDED_FLAGS,
    describe_environment,
    flags_as_json,
)
from train_utils.settings.starting_point import ARCHITECTURE, ENCODER_FLAGS
from train_utils.settings.train_settings import TrainSettings

# flags that belong to one run alone, or to the machine on which it runs
NOT_REPEATED = ("like", "plan", "output_dir", "resume", "push_to_hub", "check_data", "processes_per_volume")
# groups of flags: if the command line has a flag of a group, no flag of this group is repeated
ALTERNATIVES = ({"epochs", "max_steps", "max_minutes"}, {"image_size", "scale"}, {"val_split", "val_fraction", "fold"})


class RecordedFlags(NamedTuple):
    """The flags of another run, from its run.json.

    Args:
        flags: the values by name; empty without --like.
        environment: the versions that the run was recorded with.
        credentials: the flags whose URL had a query, which is not recorded.
    """

    flags: dict[str, Any]
    environment: dict[str, Any]
    credentials: list[str]


def read_record(parser: arg.Arguments) -> RecordedFlags:
    """Read the run.json that --like names, as a file or by its folder."""
    path = parser.parse_known_args()[0].like
    if path is None:
        return RecordedFlags({}, {}, [])
    try:
        file = path / "run.json" if path.is_dir() else path
        record = read_json(file)
    except OSError as error:
        parser.error(f"--like {path} cannot be read ({error.strerror})")
    except ValueError as error:
        parser.error(f"--like {path} cannot be read as JSON ({error})")
    if not isinstance(record.get("flags"), dict):
        parser.error(f"--like {path} is no record of a run: it holds no flags; give the run.json of an output folder")
    flags = UNRECORDED_FLAGS | record["flags"]
    unknown = sorted(flags.keys() - {entry.name for entry in fields(TrainSettings)})
    if unknown:
        parser.error(f"--like {path} holds flags that are not known here: {', '.join(unknown)}")
    if flags.get("max_minutes"):  # the number of steps decides what the run computed
        if record.get("total_steps") == 0:
            parser.error(f"--like {path}: the run by the clock has not ended, so nobody knows its steps")
        flags |= {"max_minutes": None, "max_steps": record.get("total_steps")}
    for action in parser._actions:
        fault = _fault(parser, action, flags.get(action.dest))
        if fault:
            parser.error(f"--like {path}: {action.dest} is {shorten(json.dumps(flags[action.dest]), 60)}: {fault}")
    environment = record.get("run")
    if not isinstance(environment, dict):
        environment = {}
    credentials = record.get(CREDENTIALS)
    if not isinstance(credentials, list):
        credentials = []
    return RecordedFlags(flags, environment, [name for name in credentials if name in flags])


def _fault(parser: arg.Arguments, action: argparse.Action, value: Any) -> str | None:
    """Why no run has recorded this value of a flag, as JSON holds it; None if one may have."""
    if value is None or (value == action.const and action.nargs == "?"):
        return None
    if action.nargs == 0:
        return None if isinstance(value, bool) else "expected true or false"
    takes_list = action.nargs not in (None, "?")
    if isinstance(value, list) != takes_list or value == []:
        return "expected a list" if takes_list else "expected one value"
    words = [str(item) for item in value] if takes_list else [str(value)]
    try:
        is_recorded = as_json(parser._get_values(action, words)) == value
    except argparse.ArgumentError as error:
        return str(error)
    return None if is_recorded else "no run records it so"


def repeated_arguments(parser: arg.Arguments, record: RecordedFlags) -> list[str]:
    """A recorded run's flags as arguments, without NOT_REPEATED and without flags that the command line replaces."""
    typed_flags = {word.partition("=")[0] for word in sys.argv[1:]}
    typed_names = {action.dest for action in parser._actions if typed_flags.intersection(action.option_strings)}
    if parser.parse_known_args()[0].folder is not None:  # the data set, typed without its flag
        typed_names.add("dataset")
    dropped_names = set(NOT_REPEATED)
    for group in ALTERNATIVES:
        if group & typed_names:
            dropped_names |= group
    if typed_names & {"init_from", "encoder"}:  # a model and an encoder have an architecture
        dropped_names.update(("init_from", "encoder"), ENCODER_FLAGS, ARCHITECTURE)
    arguments = []
    for action in parser._actions:
        value = record.flags.get(action.dest)
        switches_off = isinstance(action, argparse.BooleanOptionalAction) and value is False
        if action.dest in dropped_names or value is None or (value is False and not switches_off):
            continue
        flag = action.option_strings[0]
        if switches_off:
            flag = action.option_strings[-1]  # it begins with --no-
        if action.dest in record.credentials and action.dest not in typed_names:
            parser.error(
                f"--like: the URL of {flag} {value} had a query, which a run does not record; give {flag} again, with"
                " its query"
            )
        if isinstance(value, list):
            arguments.append(flag)
            arguments.extend(str(item) for item in value)
        elif action.nargs == 0 or value == action.const:  # the value of --val-blocks without a number
            arguments.append(flag)
        else:
            arguments.append(f"{flag}={value}")
    return arguments


def say_differences(args: TrainSettings, record: RecordedFlags) -> None:
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
        if is_version and record.environment.get(name, value) != value:
            versions.append(f"{name} {record.environment[name]} (here {value})")
    if versions:
        say(f"it was recorded with {', '.join(versions)}")
