"""The flags of train.py, a line for each. Precision, device and number of processes belong to the launch profile."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from data_utils.class_names import OUTSIDE
from data_utils.config import NORMALIZATIONS, DataConfig
from data_utils.loading.augmentation import STRENGTHS
from runtime import cli as arg
from runtime.console import say
from runtime.launch import COMM_HOOKS
from runtime.parallel import most_workers
from runtime.redact import redact
from tasks import TASKS
from tasks.overlapping import Overlapping
from tasks.pixels_and_regions import LOSSES
from tasks.points import ABSENCES
from tasks.regions import Regions
from train_utils.settings.hints import HINTS
from train_utils.settings.like import read_record, repeated_arguments, say_differences
from train_utils.settings.plan import Plan
from train_utils.settings.train_settings import OPTIMIZERS, SCHEDULES, TrainSettings
from unet.blocks import BLOCKS, NORMS, UPSAMPLINGS

Group = argparse._ArgumentGroup
CHOSEN_BY_PLAN = "(default: chosen from the data)"  # the default in the help of flags that the plan chooses


def parse_args(description: str) -> TrainSettings:
    """Parse and check the command line; a mistake ends the process with one line."""
    usage = "accelerate launch [launcher options] train.py --dataset DATA --output-dir DIR [flags]"
    parser = arg.Arguments(description, usage, HINTS)
    parser.add_argument("folder", nargs="?", metavar="DATA", help="the same as --dataset DATA")
    _add_first_flags(parser.add_argument_group("the ten flags to start with"))
    _add_data_flags(parser.add_argument_group("advanced: data"))
    _add_volume_flags(parser.add_argument_group("advanced: volumes"))
    _add_model_flags(parser.add_argument_group("advanced: network"))
    _add_optimization_flags(parser.add_argument_group("advanced: optimization"))
    _add_batch_flags(parser.add_argument_group("advanced: batch, memory and processes"))
    _add_run_flags(parser.add_argument_group("advanced: the run and its files"))
    record = read_record(parser)
    parsed = parser.parse_args(repeated_arguments(parser, record) + sys.argv[1:])
    sys.argv[1:] = map(redact, sys.argv[1:])  # some trackers send the command line
    has_data = parsed.folder is not None or parsed.dataset is not None
    parsed.dataset = _dataset(parsed, parser)
    del parsed.folder
    args = TrainSettings(**vars(parsed))
    _check(args, parser)
    args = _with_implied_values(args)
    if not has_data:
        say("no --dataset: this run trains on generated shapes, to try the program; for your images: --dataset DATA")
    if args.like:
        say_differences(args, record)
    elif args.max_steps and args.epochs:
        say(f"--epochs {args.epochs} has no effect: --max-steps {args.max_steps} says how long the run is")
    return args


def _dataset(parsed: argparse.Namespace, parser: arg.Arguments) -> str:
    """The data set of the command line, given with or without its flag; by default generated shapes."""
    if parsed.folder is None:
        return parsed.dataset or DataConfig.dataset
    has_flag = any(word.split("=")[0] == "--dataset" for word in sys.argv)
    if has_flag and parsed.folder != parsed.dataset:
        parser.error(
            f"{parsed.folder} and --dataset {parsed.dataset} both name a data set; give one folder of images/, masks/"
        )
    return parsed.folder


def _check(args: TrainSettings, parser: arg.Arguments) -> None:
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
    return Plan().fill(args) if args.plan == "none" else args


def _add_first_flags(group: Group) -> None:
    add = group.add_argument
    sources = "folder of images and masks, annotations or volumes; parquet or tar files; Hub id"
    add("--dataset", metavar="DATA", help=f"{sources}; shapes: generated (default: {DataConfig.dataset})")
    add("--check-data", action="store_true", help="read every file, report all problems and exit")
    names = (
        "names of mask values: 0=background,3=person,7=person; #804080=road,...; a .json file; or the classes to use"
    )
    add("--classes", metavar="NAMES", help=f"{names}, of those that the data set names: person,dog (default: all)")
    add(
        "--output-dir",
        type=arg.utf8_path,
        metavar="DIR",
        help="for model, report and checkpoints (default: runs/<time>)",
    )
    resume = "auto: continue the run in --output-dir, or start it; or the path of a checkpoint"
    add("--resume", metavar="auto|CHECKPOINT", help=resume)
    minutes = "as many steps as fit into this time, from the start of the program; with --epochs, those at most"
    add("--max-minutes", type=arg.positive_float, metavar="MINUTES", help=minutes)
    add("--epochs", type=arg.positive_int, metavar="N", help="passes over the images (default: 2,000 steps or more)")
    add(
        "--scale",
        type=arg.positive_float,
        metavar="FACTOR",
        help=f"resize images; 0.5 halves each side {CHOSEN_BY_PLAN}",
    )
    crop = f"train on random crops of H W pixels, or D H W voxels {CHOSEN_BY_PLAN}"
    add("--crop-size", type=arg.positive_int, nargs="+", metavar="SIDE", help=crop)
    strength = f"mirror: left-right; basic: also tilt, zoom, contrast; strong: also turn, flip, noise {CHOSEN_BY_PLAN}"
    add("--augment", choices=STRENGTHS, help=strength)


def _add_data_flags(group: Group) -> None:
    add = group.add_argument
    add("--task", choices=tuple(TASKS), help="what the network learns of an image (default: found in the data)")
    unions = "learn unions of mask values, 'whole=1+2+3;core=2+3;active=3', and write a mask of their first values"
    add("--regions", metavar="REGIONS", help=unions)
    add("--dataset-config", metavar="NAME", help="configuration of a Hub data set")
    add("--train-split", metavar="NAME", help="split to train on (default: train)")
    split = "split to evaluate on (default: val or validation; without one, a share of the training images)"
    add("--val-split", metavar="NAME", help=split)
    held_out = "share of the training images held out for validation"
    add("--val-fraction", type=arg.fraction_above_0, default=0.1, metavar="SHARE", help=held_out)
    names = "hold out whole groups of images: '^(donor\\d+)_' groups them by the part of the name in brackets"
    add("--val-group", metavar="REGEX", help=names)
    blocks = "hold out blocks of scenes with a place, of so many pixels a side (default: about 40 blocks in all)"
    add("--val-blocks", type=arg.positive_int, nargs="?", const=0, metavar="PIXELS", help=blocks)
    add("--fold", type=arg.fold_text, metavar="K/N", help="cross-validation: hold out the K-th of N disjoint parts")
    add("--image-column", metavar="NAME", help="column of the images (default: image)")
    add("--mask-column", metavar="NAME", help="column of the masks (default: mask, label or annotation)")
    add("--mask-suffix", metavar="SUFFIX", help="masks are named <image><suffix>.<ext> (default: detected)")
    add("--exclude", metavar="FILE", help="leave out the images of a list, a name on each line")
    add("--allow-unpaired", action="store_true", help="leave out images or masks without a counterpart")
    add("--streaming", action="store_true", help="read parquet or tar files piece by piece; URLs always are")
    add("--cache", action="store_true", help="keep decoded, resized images on disk")
    bad = "skip: train without unreadable images, and list them"
    add("--on-bad-sample", choices=("error", "skip"), default="error", help=bad)
    ignored = (
        "mask values, such as 11 or 0,255, that count in neither loss nor scores (default: 255, unless it is a class)"
    )
    add("--ignore-index", metavar="VALUES", help=ignored)
    outside = "what becomes of classes that --classes leaves out; without --classes, of the data set's background"
    add("--outside", choices=OUTSIDE, help=f"{outside} (default: background; an error where --classes has values)")
    bands = "names or numbers of the bands of TIFF files to train on, such as B08 B04 B03, or 8 4 3 (default: all)"
    add("--bands", nargs="+", metavar="BAND", help=bands)
    place = "read TIFFs with a place in the world with all bands, and leave out pixels without data (default: on)"
    add("--place", action=argparse.BooleanOptionalAction, help=place)
    column = "column of polygons in the world (GeoJSON) that says their class (default: all are of one)"
    add("--label-column", metavar="NAME", help=column)
    absent = "landmarks: what an empty cell in a table of points means (default: unknown)"
    add("--absent", choices=tuple(ABSENCES), help=absent)
    pairs = "points or overlapping classes that change places in the mirror, left=right,... (default: by their names)"
    add("--swap", metavar="PAIRS", help=pairs)
    add("--image-size", type=arg.positive_int, nargs=2, metavar=("H", "W"), help="resize all images to one size")
    draft = "decode JPEG files at a reduced size: faster, and a file differs by a few grey levels from its pixels"
    add("--draft", action="store_true", help=draft)
    workers = "processes that load data (default: by the number of CPUs)"
    add("--num-workers", type=arg.non_negative_int, metavar="N", help=workers)


def _add_volume_flags(group: Group) -> None:
    add = group.add_argument
    add("--dims", type=int, choices=(2, 3), help="2: train on slices of volumes (default: what the files hold)")
    spacing = "voxel size in mm, for formats that hold none (.npy, TIFF)"
    add("--spacing", type=arg.positive_float, nargs=3, metavar=("Z", "Y", "X"), help=spacing)
    kinds = "z-score: each volume by its own mean; ct: clipped, by the mean of all (default: by the modality)"
    add("--normalization", choices=NORMALIZATIONS, help=kinds)


def _add_model_flags(group: Group) -> None:
    add = group.add_argument
    source = "(default: {}; with --init-from its own)"
    add("--init-from", metavar="MODEL", help="start from a model folder, a Hub id, or a Pytorch-UNet .pth")
    backbone = "lite0: EfficientNet-Lite0; or a backbone of transformers, a folder or Hub id; none: plain U-Net"
    add("--encoder", metavar="lite0|none|ID", help=f"{backbone} {CHOSEN_BY_PLAN}")
    weights = "what --encoder starts from (default: pretrained)"
    add("--encoder-weights", choices=("pretrained", "random"), help=weights)
    add("--freeze-encoder", action=argparse.BooleanOptionalAction, help=f"train only the decoder {CHOSEN_BY_PLAN}")
    add("--base-channels", type=arg.positive_int, metavar="N", help=f"channels of the first level {CHOSEN_BY_PLAN}")
    levels = source.format("4, with --encoder its levels")
    add("--depth", type=arg.positive_int, metavar="N", help=f"how often the sides are halved {levels}")
    add("--norm", choices=NORMS, help=f"normalization layers {source.format('batch')}")
    add("--block", choices=BLOCKS, help=f"convolutions without or with a shortcut {CHOSEN_BY_PLAN}")
    add("--upsample", choices=UPSAMPLINGS, help=f"layers of the expanding path {source.format('transpose')}")
    dropout = f"in the deepest level {source.format(0)}"
    add("--dropout", type=arg.fraction, metavar="RATE", help=dropout)


def _add_optimization_flags(group: Group) -> None:
    add = group.add_argument
    add("--max-steps", type=arg.positive_int, metavar="N", help="optimizer steps, instead of --epochs")
    patience = "stop after N evaluations without a better score (default: never)"
    add("--patience", type=arg.positive_int, metavar="N", help=patience)
    optimizers = "muon: orthogonal steps of convolutions, adamw for the rest; sgd has momentum 0.9"
    add("--optimizer", choices=OPTIMIZERS, help=f"{optimizers} {CHOSEN_BY_PLAN}")
    add("--learning-rate", type=arg.positive_float, default=1e-3, metavar="RATE", help="highest one; it falls to 0")
    factor = "share of --learning-rate for the encoder (default: 0.1; with random weights 1)"
    add("--encoder-lr-factor", type=arg.positive_float, metavar="FACTOR", help=factor)
    add("--weight-decay", type=arg.non_negative_float, default=1e-2, metavar="RATE", help="not of norms and biases")
    add("--schedule", choices=SCHEDULES, default="cosine", help="decay of the learning rate")
    add(
        "--warmup-steps",
        type=arg.non_negative_int,
        metavar="N",
        help="in which the learning rate rises from 0 (default: 5%%)",
    )
    add("--max-grad-norm", type=arg.non_negative_float, default=1.0, metavar="NORM", help="clip gradients; 0 is off")
    average = "average the weights, and evaluate and save the average; 0 is off"
    add("--ema-decay", type=arg.fraction, default=0.0, metavar="DECAY", help=average)
    add("--loss", choices=LOSSES, default="ce+logdice", help="cross-entropy, Dice or both")
    deep = "also train the output of coarser levels (default: on)"
    add("--deep-supervision", action=argparse.BooleanOptionalAction, default=True, help=deep)
    weights = f"auto: rare classes weigh more; none; or a number for each class {CHOSEN_BY_PLAN}"
    add("--class-weights", type=_class_weight, nargs="+", metavar="WEIGHT", help=weights)


def _class_weight(text: str) -> float | str:
    if text in ("auto", "none"):
        return text
    try:
        return arg.positive_float(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor auto or none") from error


def _add_batch_flags(group: Group) -> None:
    add = group.add_argument
    images = f"images in one optimizer step, of all processes together {CHOSEN_BY_PLAN}"
    add("--batch-size", type=arg.positive_int, metavar="N", help=images)
    micro = "images in one forward pass of one process; auto: as many as fit into memory"
    add("--micro-batch-size", type=arg.auto_or(arg.positive_int), default="auto", metavar="N", help=micro)
    recompute = "compute activations again in the backward pass: less memory, a third more time"
    add("--activation-checkpointing", action="store_true", help=recompute)
    norms = "batch norm over all processes; auto: where there are several"
    add("--sync-batchnorm", choices=("auto", "on", "off"), default="auto", help=norms)
    add("--ddp-comm-hook", choices=COMM_HOOKS, default="none", help="compress the gradients that processes exchange")
    slabs = "processes that share each volume or image, one slab each: for volumes that do not fit into one's memory"
    add("--processes-per-volume", type=arg.positive_int, default=1, metavar="S", help=f"{slabs} (default: 1)")


def _add_run_flags(group: Group) -> None:
    add = group.add_argument
    plan = "auto: choose settings from the data; none: those of the original U-Net"
    add("--plan", choices=("auto", "none"), default="auto", help=plan)
    add("--like", type=Path, metavar="RUN.json", help="repeat a recorded run; flags given here win")
    epoch = f"0: after each epoch {CHOSEN_BY_PLAN}"
    add("--eval-every", type=arg.non_negative_int, metavar="STEPS", help=f"evaluate after so many steps; {epoch}")
    add("--checkpoint-every", type=arg.non_negative_int, metavar="STEPS", help=f"save after so many steps; {epoch}")
    add(
        "--keep-checkpoints",
        type=arg.positive_int,
        default=2,
        metavar="N",
        help="how many of the newest, beside the best",
    )
    log = "record the training loss after so many steps; 0: after each epoch"
    add("--log-every", type=arg.non_negative_int, default=10, metavar="STEPS", help=log)
    add("--trace-steps", type=arg.non_negative_int, default=0, metavar="N", help="profile N steps with torch.profiler")
    add("--push-to-hub", type=arg.hub_id, metavar="ID", help="upload the best model to the Hub at the end")
    add("--tracker", default="tensorboard", help="any installed tracker that accelerate knows, or none")
    add("--seed", type=arg.seed_number, default=0, help="of weights, order of the images and augmentation")
    add("--deterministic", action="store_true", help="use deterministic kernels only; slower on GPUs")
