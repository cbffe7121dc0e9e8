"""The command line of train.py. Precision, device and number of processes belong to the launch profile."""

import sys
from dataclasses import replace
from typing import Any

from data_utils.config import GROUPS
from runtime import cli
from runtime.console import say
from runtime.parallel import most_workers
from runtime.redact import redact
from runtime.settings import add_settings
from runtime.values import checked
from tasks.overlapping.loss import Overlapping
from tasks.regions.loss import Regions
from train_utils.settings.like import read_record, repeated_settings, say_differences
from train_utils.settings.plan import fill
from train_utils.settings.train_settings import UNPLANNED, TrainSettings

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


def parse_args(description: str) -> TrainSettings:
    """Parse and check the command line; a mistake ends the process with one line."""
    usage = "python train.py --dataset DATA --output-dir DIR [flags], or accelerate launch [options] train.py ..."
    parser = cli.Arguments(description, usage, HABITS)
    parser.add_argument("folder", nargs="?", metavar="DATA", help="the same as --dataset DATA")
    for title in GROUPS:
        parser.add_argument_group(title)
    add_settings(parser, TrainSettings)
    parsed = vars(parser.parse_args())
    typed = checked(TrainSettings, parsed)
    sys.argv[1:] = map(redact, sys.argv[1:])  # some trackers send the command line
    if parsed["folder"] is not None:
        _add_folder(typed, parsed["folder"], parser)
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


def _add_folder(typed: dict[str, Any], folder: str, parser: cli.Arguments) -> None:
    """Make the data set that was typed without a flag the value of --dataset."""
    if typed.setdefault("dataset", folder) != folder:
        parser.error(
            f"{folder} and --dataset {typed['dataset']} both name a data set; give one folder of images/, masks/"
        )


def _check(args: TrainSettings, parser: cli.Arguments) -> None:
    """End the program with a line for flags that do not go together."""
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
