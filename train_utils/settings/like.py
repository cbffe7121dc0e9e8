"""--like: the flags of a recorded run, on the command line of another."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from runtime import cli as arg
from runtime.console import say
from runtime.redact import redact_all
from train_utils.settings.record import CREDENTIALS, PACKAGES, UNRECORDED, describe_run, flags_as_json, say_credentials
from train_utils.settings.starting_point import ARCHITECTURE, OF_ENCODER
from train_utils.settings.train_settings import TrainSettings

NOT_REPEATED = ("like", "plan", "output_dir", "resume", "push_to_hub", "check_data")  # of the run that --like names
# where one of a group is given, none is repeated
ALTERNATIVES = ({"epochs", "max_steps", "max_minutes"}, {"image_size", "scale"}, {"val_split", "val_fraction", "fold"})


class RecordedFlags(NamedTuple):
    """What the run.json of another run says of its flags.

    flags: by name; empty without --like.
    run: the versions that it was recorded with.
    credentials: the flags whose URL had a user, password or query, which are not recorded.
    """

    flags: dict[str, Any]
    run: dict[str, Any]
    credentials: list[str]


def read_record(parser: arg.Arguments) -> RecordedFlags:
    """The run.json that --like names, of a run's folder too."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--like", type=Path, nargs="?")  # without a value the parser itself will say so
    path = first.parse_known_args()[0].like
    if path is None:
        return RecordedFlags({}, {}, [])
    try:
        record = json.loads((path / "run.json" if path.is_dir() else path).read_bytes())
    except OSError as error:
        parser.error(f"--like {path} cannot be read ({error.strerror})")
    except ValueError as error:
        parser.error(f"--like {path} cannot be read as JSON ({error})")
    if not isinstance(record, dict) or not isinstance(record.get("flags"), dict):
        parser.error(f"--like {path} is no record of a run: it holds no flags; give the run.json of an output folder")
    flags, run, credentials = record["flags"], record.get("run"), record.get(CREDENTIALS)
    unknown = sorted(flags.keys() - {action.dest for action in parser._actions})
    if unknown:
        parser.error(f"--like {path} holds flags that are not known here: {', '.join(unknown)}")
    if flags.get("max_minutes"):  # measured once: its steps are what was computed
        flags |= {"max_minutes": None, "max_steps": record.get("total_steps")}
    return RecordedFlags(
        flags, run if isinstance(run, dict) else {}, credentials if isinstance(credentials, list) else []
    )


def repeated_arguments(parser: arg.Arguments, record: RecordedFlags) -> list[str]:
    """A recorded run's flags as arguments, but for those that are not to be repeated beside the command line's."""
    texts = {text.partition("=")[0] for text in sys.argv[1:]}
    given = {action.dest for action in parser._actions if texts.intersection(action.option_strings)}
    dropped = {*NOT_REPEATED}.union(*(group for group in ALTERNATIVES if group & given))
    if given & {"init_from", "encoder"}:  # which have an architecture
        dropped |= {"init_from", "encoder", *OF_ENCODER, *ARCHITECTURE}
    arguments = []
    for action in parser._actions:
        value = record.flags.get(action.dest)
        switches_off = isinstance(action, argparse.BooleanOptionalAction) and value is False
        if action.dest in dropped or value is None or (value is False and not switches_off):
            continue
        flag = action.option_strings[-1 if switches_off else 0]
        if action.dest in record.credentials and action.dest not in given:
            parser.error(
                f"--like: the URL of {flag} {value} had a user, password or query, which a run does not record;"
                f" give {flag} again, with them"
            )
        if isinstance(value, list):
            arguments += [flag, *map(str, value)]
        else:
            arguments.append(flag if action.nargs == 0 else f"{flag}={value}")
    return arguments


def say_differences(settings: TrainSettings, record: RecordedFlags) -> None:
    """Which flags differ from those of the recorded run, and which versions."""
    flags = redact_all(record.flags)
    changed = [
        f"{name} {value} (was {flags.get(name)})"
        for name, value in flags_as_json(settings).items()
        if name not in NOT_REPEATED and value != (UNRECORDED | flags).get(name)
    ]
    say(f"like {settings.like}, " + (f"but {', '.join(changed)}" if changed else "without a change"))
    say_credentials(settings, record.flags, record.credentials)
    here = {name: value for name, value in describe_run().items() if name in (*PACKAGES, "python", "git_commit")}
    other = [
        f"{name} {record.run[name]} (here {value})"
        for name, value in here.items()
        if record.run.get(name, value) != value
    ]
    if other:
        say(f"it was recorded with {', '.join(other)}")
