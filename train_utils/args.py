"""The flags of train.py, a line for each. Precision, device and number of processes belong to the launch profile."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from data_utils.analysis.plan import DEFAULTS
from data_utils.config import NORMALIZATIONS
from data_utils.loading.draws import STRENGTHS
from runtime import cli as arg
from runtime.console import say
from runtime.launch import COMM_HOOKS
from train_utils.monitoring.tracking import available_tracker
from train_utils.reporting.hub import check_token
from train_utils.run_dir import PACKAGES, describe_run, flags_as_json
from train_utils.schedule import SCHEDULES
from unet.blocks import BLOCKS, NORMS, UPSAMPLINGS
from unet.finetune import ARCHITECTURE, OF_ENCODER
from unet.losses import LOSSES

Group = argparse._ArgumentGroup
NOT_REPEATED = ("like", "plan", "output_dir", "resume", "push_to_hub", "check_data")  # of the run that --like names
# where one of a group is given, none is repeated
ALTERNATIVES = ({"epochs", "max_steps", "max_minutes"}, {"image_size", "scale"}, {"val_split", "val_fraction", "fold"})


def parse_args(description: str) -> argparse.Namespace:
    """The command line, checked; a mistake ends the process with one line."""
    parser = arg.Arguments(description=description)
    _add_data_flags(parser.add_argument_group("data"))
    defaults = "the defaults are --init-from's architecture, else the original U-Net's"
    _add_model_flags(parser.add_argument_group("model", defaults))
    _add_optimization_flags(parser.add_argument_group("optimization"))
    _add_run_flags(parser.add_argument_group("run"))
    record = _read_record(parser)
    args = parser.parse_args([*_repeated(parser, record.get("flags", {})), *sys.argv[1:]])
    if args.resume == "auto" and args.output_dir is None:
        parser.error("--resume auto needs --output-dir, the folder of the run to go on with")
    if args.max_minutes and args.max_steps:
        parser.error("--max-minutes and --max-steps both say how long the run is; give one of them")
    if args.image_size and args.scale not in (None, 1):
        parser.error("--image-size and --scale both set the size; give one of them")
    if args.crop_size and len(args.crop_size) not in (2, 3):
        parser.error(f"--crop-size has {len(args.crop_size)} sides; give H W, or D H W for volumes")
    if args.encoder and args.encoder_weights is None:
        args.encoder_weights = "pretrained"
    if args.like or args.init_from:  # which have settings of their own
        args.plan = "none"
    if args.plan == "none":
        vars(args).update({name: value for name, value in DEFAULTS.items() if getattr(args, name) is None})
    if args.like:
        _say_differences(args, record)
    args.tracker = available_tracker(args.tracker)
    check_token(args.push_to_hub)
    return args


def _read_record(parser: arg.Arguments) -> dict[str, Any]:
    """The run.json that --like names, of a run's folder too; {} without it."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--like", type=Path, nargs="?")  # without a value the parser itself will say so
    path = first.parse_known_args()[0].like
    if path is None:
        return {}
    try:
        record = json.loads((path / "run.json" if path.is_dir() else path).read_bytes())
    except OSError as error:
        parser.error(f"--like {path} cannot be read ({error.strerror})")
    except ValueError as error:
        parser.error(f"--like {path} cannot be read as JSON ({error})")
    if not isinstance(record, dict) or not isinstance(record.get("flags"), dict):
        parser.error(f"--like {path} is no record of a run: it holds no flags; give the run.json of an output folder")
    flags, run = record["flags"], record.get("run")
    unknown = sorted(flags.keys() - {action.dest for action in parser._actions})
    if unknown:
        parser.error(f"--like {path} holds flags that are not known here: {', '.join(unknown)}")
    if flags.get("max_minutes"):  # measured once: its steps are what was computed
        flags |= {"max_minutes": None, "max_steps": record.get("total_steps")}
    return {"flags": flags, "run": run if isinstance(run, dict) else {}}


def _repeated(parser: arg.Arguments, flags: dict[str, Any]) -> list[str]:
    """A recorded run's flags as arguments, but for those that are not to be repeated beside the command line's."""
    texts = {text.partition("=")[0] for text in sys.argv[1:]}
    given = {action.dest for action in parser._actions if texts.intersection(action.option_strings)}
    dropped = {*NOT_REPEATED}.union(*(group for group in ALTERNATIVES if group & given))
    if given & {"init_from", "encoder"}:  # which have an architecture
        dropped |= {"init_from", "encoder", *OF_ENCODER, *ARCHITECTURE}
    arguments = []
    for action in parser._actions:
        value = flags.get(action.dest)
        switches_off = isinstance(action, argparse.BooleanOptionalAction) and value is False
        if action.dest in dropped or value is None or (value is False and not switches_off):
            continue
        flag = action.option_strings[-1 if switches_off else 0]
        if isinstance(value, list):
            arguments += [flag, *map(str, value)]
        else:
            arguments.append(flag if action.nargs == 0 else f"{flag}={value}")
    return arguments


def _say_differences(args: argparse.Namespace, record: dict[str, Any]) -> None:
    """Which flags differ from those of the recorded run, and which versions."""
    flags, run = record["flags"], record["run"]
    changed = [
        f"{name} {value} (was {flags.get(name)})"
        for name, value in flags_as_json(args).items()
        if name not in NOT_REPEATED and value != flags.get(name)
    ]
    say(f"like {args.like}, " + (f"but {', '.join(changed)}" if changed else "without a change"))
    here = {name: value for name, value in describe_run().items() if name in (*PACKAGES, "python", "git_commit")}
    other = [f"{name} {run[name]} (here {value})" for name, value in here.items() if run.get(name, value) != value]
    if other:
        say(f"it was recorded with {', '.join(other)}")


def _add_data_flags(data: Group) -> None:
    data.add_argument(
        "--dataset",
        default="shapes",
        help="`shapes` (generated), a folder of masks or annotations, parquet files, a Hub id",
    )
    data.add_argument("--dataset-config", help="configuration name of a Hub data set")
    data.add_argument("--train-split", help="default: train")
    data.add_argument("--val-split", help="default: val or validation if there, else a share of train")
    data.add_argument("--val-fraction", type=arg.share, default=0.1, help="share of the training images held out")
    data.add_argument("--val-group", metavar="REGEX", help="hold out whole groups: names alike in its first bracket")
    data.add_argument("--fold", type=arg.fold, metavar="K/N", help="hold out the K-th of N disjoint parts")
    data.add_argument("--image-column", help="default: image")
    data.add_argument("--mask-column", help="default: mask, label or annotation")
    data.add_argument("--mask-suffix", help="masks are named <stem><suffix>.<ext>; default: detected")
    data.add_argument("--allow-unpaired", action="store_true", help="leave out what has no counterpart")
    data.add_argument("--streaming", action="store_true", help="read parquet files as they come; always from a URL")
    data.add_argument("--cache", action="store_true", help="keep decoded, resized images on disk")
    data.add_argument("--check-data", action="store_true", help="read every file, report all problems, exit")
    data.add_argument("--on-bad-sample", choices=("error", "skip"), default="error", help="skip: list it and go on")
    data.add_argument("--classes", help="JSON file, 0=background,255=car or #804080=road,...; default: found")
    data.add_argument("--ignore-index", help="mask value that counts nowhere; default: 255 if no class")
    data.add_argument("--scale", type=arg.positive, help="resize factor")
    data.add_argument("--image-size", type=arg.natural, nargs=2, metavar=("H", "W"), help="fixed size of all images")
    sides = "random training crop, H W; of volumes D H W"
    data.add_argument("--crop-size", type=arg.natural, nargs="+", metavar="SIDE", help=sides)
    data.add_argument("--dims", type=int, choices=(2, 3), help="2: slices of volumes; default: what the files are")
    axes, mm = ("Z", "Y", "X"), "in mm, of volumes whose files hold none"
    data.add_argument("--spacing", type=arg.positive, nargs=3, metavar=axes, help=mm)
    kinds = "of volumes: each by itself, or clipped as CT; default: by the modality"
    data.add_argument("--normalization", choices=NORMALIZATIONS, help=kinds)
    data.add_argument("--augment", choices=STRENGTHS, help="training augmentation, basic")
    data.add_argument("--num-workers", type=arg.count, help="default: from this process's share of the CPUs")


def _add_model_flags(model: Group) -> None:
    model.add_argument("--init-from", help="start from a model folder, a Hub id, or a Pytorch-UNet .pth")
    model.add_argument("--encoder", help="a backbone of transformers in a folder or on the Hub: microsoft/resnet-50")
    weights = ("pretrained", "random")
    model.add_argument("--encoder-weights", choices=weights, help="what --encoder starts from: pretrained")
    model.add_argument("--freeze-encoder", action="store_true", help="train the decoder only: faster, less memory")
    model.add_argument("--base-channels", type=arg.natural, help="width of the first level, 64; with --encoder 16")
    model.add_argument("--depth", type=arg.natural, help="number of poolings, 4; with --encoder its own")
    model.add_argument("--norm", choices=NORMS, help="normalisation, batch")
    model.add_argument("--block", choices=BLOCKS, help="pairs of convolutions with or without a shortcut")
    model.add_argument("--upsample", choices=UPSAMPLINGS, help="way up, transpose")
    model.add_argument("--dropout", type=arg.fraction, help="at the end of the contracting path, 0")
    model.add_argument("--activation-checkpointing", action="store_true", help="less memory, a third more computing")
    model.add_argument("--sync-batchnorm", choices=("auto", "on", "off"), default="auto", help="with several processes")


def _add_optimization_flags(optim: Group) -> None:
    optim.add_argument("--batch-size", type=arg.natural, help="images in one optimizer step, 4")
    optim.add_argument("--micro-batch-size", type=arg.auto_or(arg.natural), default="auto", help="in one forward pass")
    optim.add_argument("--gradient-accumulation-steps", type=arg.natural, help="default: the profile's, else derived")
    optim.add_argument("--epochs", type=arg.natural, help="passes over the training images")
    optim.add_argument("--max-steps", type=arg.natural, help="optimizer steps, instead of --epochs")
    optim.add_argument(
        "--max-minutes", type=arg.positive, help="as many steps as fit into the time, instead of --epochs"
    )
    optim.add_argument("--patience", type=arg.natural, help="evaluations without a better mean IoU before stopping")
    optim.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw", help="SGD has momentum 0.9")
    optim.add_argument("--learning-rate", type=arg.positive, default=1e-3, help="peak learning rate")
    optim.add_argument(
        "--encoder-lr-factor", type=arg.positive, help="of the learning rate: 0.1, with random weights 1"
    )
    optim.add_argument("--weight-decay", type=arg.amount, default=1e-2, help="not on norms and biases")
    optim.add_argument("--schedule", choices=SCHEDULES, default="cosine", help="of the learning rate")
    optim.add_argument("--warmup-steps", type=arg.count, help="linear warm-up; default: 5%% of the run")
    optim.add_argument("--max-grad-norm", type=arg.amount, default=1.0, help="gradient clipping; 0 is off")
    optim.add_argument("--ema-decay", type=arg.fraction, default=0.0, help="weights averaged to evaluate and save")
    optim.add_argument("--ddp-comm-hook", choices=COMM_HOOKS, default="none", help="compress exchanged gradients")
    optim.add_argument("--loss", choices=LOSSES, default="ce+logdice", help="training loss")
    levels = argparse.BooleanOptionalAction
    optim.add_argument("--deep-supervision", action=levels, default=True, help="coarser levels predict in training too")
    weights = "auto, none, or one for each class; default: by the plan"
    optim.add_argument("--class-weights", type=_class_weight, nargs="+", metavar="WEIGHT", help=weights)


def _class_weight(text: str) -> float | str:
    return text if text == "none" else arg.auto_or(arg.positive)(text)


def _add_run_flags(run: Group) -> None:
    run.add_argument("--plan", choices=("auto", "none"), default="auto", help="choose from the data what is not given")
    run.add_argument("--like", type=Path, metavar="RUN.json", help="repeat a recorded run, but for flags given here")
    run.add_argument("--output-dir", type=Path, help="default: runs/<time>")
    run.add_argument("--resume", help="`auto`: the newest complete checkpoint in --output-dir, if any; or a checkpoint")
    run.add_argument("--checkpoint-every", type=arg.count, metavar="STEPS", help="0: each epoch")
    run.add_argument("--keep-checkpoints", type=arg.natural, default=2, help="the newest ones, beside the best")
    run.add_argument("--eval-every", type=arg.count, metavar="STEPS", help="0: each epoch")
    run.add_argument("--log-every", type=arg.count, default=10, metavar="STEPS", help="0: each epoch")
    run.add_argument("--trace-steps", type=arg.count, default=0, metavar="N", help="torch.profiler trace of N steps")
    run.add_argument("--push-to-hub", type=arg.hub_id, metavar="ID", help="upload the best model to the Hub at the end")
    run.add_argument("--tracker", default="tensorboard", help="any tracker that accelerate knows, or none")
    run.add_argument("--seed", type=arg.seed, default=0, help="of weights, order and augmentation")
    run.add_argument("--deterministic", action="store_true", help="deterministic kernels, slower on GPUs")
