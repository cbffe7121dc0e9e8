"""The command line of train.py. Precision, device and number of processes belong to the launch profile."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_utils.config import GROUPS
from runtime import cli
from runtime.console import say
from runtime.machine import most_workers
from runtime.redact import redact
from runtime.settings import add_settings, reader
from runtime.values import checked, field_types
from tasks.overlapping.loss import Overlapping, Regions
from train_utils.settings.plan import fill
from train_utils.settings.record import PACKAGES, RunSettings, describe_environment, flags_as_json
from train_utils.settings.starting_point import ARCHITECTURE, ENCODER_FLAGS
from train_utils.settings.train_settings import NOT_REPEATED, RUNS, UNPLANNED, TrainSettings

HABITS = {  # flags of other programs, without their dashes -> the text to type here; the parser finds similar names
    "data root images masks": "did you mean --dataset DATA, a folder that holds images/ and masks/?",
    "name exp-name": "did you mean --output-dir runs/NAME?",
    "config cfg": "settings are flags; --like RUN.json repeats a recorded run",
    "model arch": "the network is a U-Net: --encoder, --base-channels and --depth choose its kind and size",
    "pretrained backbone": "--encoder lite0 is a pretrained encoder, --init-from a model to start from",
    "num-classes n-classes": "it is found in the data; see --classes for the names of classes",
    "weights checkpoint load": "--init-from MODEL starts from a model, --resume auto continues the run in --output-dir",
    "imgsz img-size": "did you mean --image-size H W, --scale FACTOR or --crop-size H W?",
    "lr": "did you mean --learning-rate?",
    "e": "did you mean --epochs?",
    "b": "did you mean --batch-size?",
    "steps iterations": "did you mean --max-steps?",
    "wandb": "did you mean --tracker wandb?",
    "tta overlay ensemble boundary truth": "predict.py has this flag, with a trained model",
}
# groups of settings: if the command line has one of a group, no other of this group is repeated
ALTERNATIVES = ({"epochs", "max_steps", "max_minutes"}, {"image_size", "scale"}, {"val_split", "val_fraction", "fold"})


def parse_args(description: str) -> TrainSettings:
    """Parse and check the command line; a mistake ends the process with one line."""
    usage = "python train.py --dataset DATA --output-dir DIR [flags], or accelerate launch [options] train.py ..."
    parser = cli.Arguments(description, usage, HABITS)
    parser.add_argument("folder", nargs="?", metavar="DATA", type=reader(str), help="the same as --dataset DATA")
    for title in GROUPS:
        parser.add_argument_group(title)
    add_settings(parser, TrainSettings)
    parsed = vars(parser.parse_args())
    typed = checked(TrainSettings, parsed)
    sys.argv[1:] = map(redact, sys.argv[1:])  # some trackers send the command line
    folder = parsed["folder"]
    if folder is not None and typed.setdefault("dataset", folder) != folder:
        parser.error(
            f"{folder} and --dataset {typed['dataset']} both name a data set; give one folder of images/, masks/"
        )
    record = read_record(typed.get("like"), parser)
    repeated = repeated_settings(record, typed) if record else {}
    values = repeated | typed
    args = TrainSettings(**values)
    _check(args, parser)
    args = _with_implied_values(args)
    if "dataset" not in values:
        say("no --dataset: this run trains on generated shapes, to try the program; for your images: --dataset DATA")
    if record:
        say_differences(args, record)
    elif args.max_steps and args.epochs:
        say(f"--epochs {args.epochs} has no effect: --max-steps {args.max_steps} says how long the run is")
    return args


def _check(args: TrainSettings, parser: cli.Arguments) -> None:
    """End the program with a line for flags that do not go together."""
    folder = (args.output_dir or RUNS).absolute()
    try:
        str(folder).encode()  # safetensors takes no other
    except UnicodeEncodeError:
        if not args.check_data:
            parser.error(f"argument --output-dir: {folder} is not UTF-8; choose a folder with another name")
    if args.resume == "auto" and args.output_dir is None:
        parser.error("--resume auto needs --output-dir, the folder of the run to go on with")
    if args.max_minutes and args.max_steps:
        parser.error("--max-minutes and --max-steps both say how long the run is; give one of them")
    if args.image_size and args.scale not in (None, 1):
        parser.error("--image-size and --scale both set the size; give one of them")
    if args.regions and args.task not in (None, Overlapping.name, Regions.name):
        parser.error(f"--regions is for --task {Regions.name}, and --task is {args.task}; leave one of them out")
    if args.crop_size and len(args.crop_size) not in (2, 3):
        parser.error(f"--crop-size has {len(args.crop_size)} sides; give H W, or D H W for volumes")


def _with_implied_values(args: TrainSettings) -> TrainSettings:
    """The settings with values for open flags that follow from the given ones."""
    if args.regions and args.task in (None, Overlapping.name):
        args = replace(args, task=Regions.name)
    if args.encoder_source and args.encoder_weights is None:
        args = replace(args, encoder_weights="pretrained")
    workers = most_workers()
    if args.num_workers is not None and args.num_workers > workers:
        say(f"--num-workers {args.num_workers}: lowered to {workers}, since the processors of this machine use no more")
        args = replace(args, num_workers=workers)
    if args.like or args.init_from:  # a recorded run and a model have settings of their own
        args = replace(args, plan="none")
    return fill(args, UNPLANNED) if args.plan == "none" else args


def read_record(path: Path | None, parser: cli.Arguments) -> RunSettings | None:
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
