"""The flags of predict.py, a line for each, with their types.

Precision, device and number of processes belong to the launch profile.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from data_utils.image_io.formats import IMAGE_SUFFIXES, REMEDIES
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from runtime import cli as arg

MASK_FILES = (".png", ".tif", ".tiff", ".nii.gz")  # how the file of the only mask ends
TABLES = (".csv", ".json", ".geojson", ".gpkg", ".tps", ".pts")  # which are written into a folder only
HINTS = {**arg.LAUNCH_HINTS}  # what to type instead of flags that other programs have
HINTS |= dict.fromkeys(("image", "images", "source"), "did you mean --input FILES?")
HINTS |= dict.fromkeys(("weights", "checkpoint", "load"), "did you mean --model MODEL?")
HINTS |= dict.fromkeys(("masks", "labels", "gt"), "did you mean --truth DIR?")
HINTS |= dict.fromkeys(("viz", "visualize"), "did you mean --overlay?")
PROBABILITIES_HINT = "each pixel gets its most probable class; --probabilities writes how probable each one is"
HINTS |= dict.fromkeys(("threshold", "conf"), PROBABILITIES_HINT)
HINTS |= dict.fromkeys(("batch-size", "num-workers"), "it is chosen here; leave it out")
HINTS["rank"] = "it is gone: a random order of the images to annotate is as good (docs/reviewing-masks.md)"
HINTS["processes-per-volume"] = "it is gone from prediction: leave it out, a large input is predicted in tiles"


@dataclass(frozen=True)
class PredictSettings:
    """The flags of a call of predict.py, under their names; `predict.py --help` explains each.

    Args:
        output: the folder of all outputs.
        tile_size: None cuts an image into tiles only if it does not fit as a whole.
        overlap: None chooses the overlap at which tiles give the result of the whole image, where that is possible.
        file: the file of the only mask, if `--output` names one in place of a folder.
    """

    model: str
    input: list[str]
    output: Path
    overlay: bool
    truth: Path | None
    overwrite: bool
    # further outputs
    probabilities: bool
    uncertainty: bool
    polygons: str | None
    coco: bool
    # objects
    min_size: int | None
    drop_border: bool
    # how inputs are predicted and scored
    tta: bool
    ensemble: list[str]
    boundary: bool
    mask_suffix: str | None
    tile_size: int | None
    overlap: int | None
    scale: float | None
    file: Path | None


def parse_args(description: str) -> PredictSettings:
    """The settings from the command line; the model and its preprocessing are described by the model's config.json."""
    usage = "predict.py --model MODEL --input FILES [FILES ...] --output DIR [flags]"
    parser = arg.Arguments(description, usage, HINTS)
    _add_first_flags(parser.add_argument_group("the flags to start with"))
    _add_advanced_flags(parser.add_argument_group("advanced"))
    args = parser.parse_args()
    if args.boundary and not args.truth:
        parser.error("--boundary needs --truth, the folder of true masks to score against")
    args.file = None
    file_name = "" if args.output.is_dir() else args.output.name.lower()
    if file_name.endswith(MASK_FILES):
        args.file = args.output
        args.output = args.output.parent
    elif file_name.endswith((*IMAGE_SUFFIXES, *VOLUME_SUFFIXES, *REMEDIES, *TABLES)):
        parser.error(f"--output {args.output}: a mask is a file .png, .tif or .nii.gz; give one of these, or a folder")
    if args.tile_size == "auto":
        args.tile_size = None
    if args.overlap == "auto":
        args.overlap = None
    return PredictSettings(**vars(args))


def _add_first_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    models = "model folder that train.py wrote, Hub id, .onnx file, or a Pytorch-UNet .pth"
    add("--model", required=True, help=models)
    files = "files, folders (with their subfolders) or patterns such as 'scans/*.tif'"
    add("--input", required=True, nargs="+", metavar="FILES", help=files)
    masks = "for the masks: <image>.png, .tif where the image has a place, .nii.gz of volumes; or one such file"
    add("--output", required=True, type=arg.non_empty_path, metavar="DIR", help=masks)
    add("--overlay", action="store_true", help="also draw each mask on its image: <image>.overlay.png")
    truth = "folder of true masks: print the scores and write metrics.json"
    add("--truth", type=Path, metavar="DIR", help=truth)
    add("--overwrite", action="store_true", help="predict again where the output is already there")


def _add_advanced_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    probabilities = "also write the probability of each class: <image>.npy, of volumes <volume>.probabilities.nii.gz"
    add("--probabilities", action="store_true", help=probabilities)
    unsure = "also write how unsure each pixel is, 0 to 255: <image>.uncertainty.png, .tif or .nii.gz as the masks"
    add("--uncertainty", action="store_true", help=unsure)
    polygons = "also write what is predicted as polygons: <image>.geojson, or .gpkg; needs images with a place"
    add("--polygons", nargs="?", const="geojson", choices=("geojson", "gpkg"), help=polygons)
    add("--coco", action="store_true", help="of objects: also write all of them into one file of COCO, objects.json")
    smallest = "of objects: leave out those of fewer pixels (default: what is small for the training objects)"
    add("--min-size", type=arg.positive_int, metavar="PIXELS", help=smallest)
    add("--drop-border", action="store_true", help="of objects: leave out those that touch the border of the image")
    mirrored = "average over mirrored and turned copies of the image, as far as training used them"
    add("--tta", action="store_true", help=mirrored)
    add("--ensemble", nargs="+", default=[], metavar="MODEL", help="average with these models")
    add("--boundary", action="store_true", help="with --truth: also boundary IoU and HD95, of volumes in mm")
    suffix = "true masks are named <image><suffix>.<ext> (default: detected)"
    add("--mask-suffix", metavar="SUFFIX", help=suffix)
    tile = (
        "side of a tile in pixels, after scaling, for objects without what it must see around; auto: tiles only where"
        " the whole image does not fit"
    )
    add("--tile-size", type=arg.auto_or(arg.positive_int), default="auto", metavar="PIXELS", help=tile)
    overlap = "of tiles; auto: so much that tiles change nothing, where that is possible"
    add("--overlap", type=arg.auto_or(arg.non_negative_int), default="auto", metavar="PIXELS", help=overlap)
    scale = "only for a Pytorch-UNet .pth: the --scale that it was trained with (default: 0.5)"
    add("--scale", type=arg.positive_float, metavar="FACTOR", help=scale)
