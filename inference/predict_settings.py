"""The flags of predict.py, with their types, and its command line.

Precision, device and number of processes belong to the launch profile.
"""

from dataclasses import MISSING, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from data_utils.image_io.formats import FORMAT_REMEDIES
from data_utils.image_io.reader import IMAGE_SUFFIXES
from data_utils.image_io.volume_formats import VOLUME_SUFFIXES
from runtime.cli import Arguments
from runtime.settings import add_settings, setting
from runtime.values import Count, Natural, OneOf, Positive, Source, checked

MASK_FILES = (".png", ".tif", ".tiff", ".nii.gz", ".dcm")  # how the file of the only mask ends
TABLES = (".csv", ".json", ".geojson", ".gpkg", ".tps", ".pts")  # which are written into a folder only
HABITS = {  # flags of other programs, without their dashes -> the text to type here
    "image images source": "did you mean --input FILES?",
    "weights checkpoint load": "did you mean --model MODEL?",
    "masks labels gt": "did you mean --truth DIR?",
    "viz visualize": "did you mean --overlay?",
    "threshold conf": "each pixel gets its most probable class; --probabilities writes how probable each one is",
    "batch-size num-workers": "it is chosen here; leave it out",
    "rank": "it is gone: a random order of the images to annotate is as good (docs/reviewing-masks.md)",
    "processes-per-volume": "it is gone from prediction: leave it out, a large input is predicted in tiles",
}

_first = partial(setting, group="the flags to start with")
_advanced = partial(setting, group="advanced")


@dataclass(frozen=True)
class PredictSettings:
    """The settings of a call of predict.py, one field for each flag.

    Args:
        output: the folder of all outputs.
        tile_size: None cuts an image into tiles only if it does not fit as a whole.
        overlap: None chooses the overlap at which tiles give the result of the whole image, where that is possible.
        file: the file of the only mask, if `--output` names one in place of a folder.
    """

    model: Source = _first(
        "model folder that train.py wrote, Hub id, .onnx file, or a Pytorch-UNet .pth", default=MISSING
    )
    input: tuple[Source, ...] = _first(
        "files, folders (with their subfolders) or patterns such as 'scans/*.tif'",
        default=MISSING,
        metavar="FILES",
        grows=True,
    )
    output: Path = _first(
        "for the masks: <image>.png, .tif where the image has a place, .nii.gz of volumes, .dcm (SEG) of DICOM"
        " series; or one such file",
        default=MISSING,
        metavar="DIR",
    )
    overlay: bool = _first("also draw each mask on its image: <image>.overlay.png", default=False)
    truth: Path | None = _first("folder of true masks: print the scores and write metrics.json", metavar="DIR")
    overwrite: bool = _first("predict again where the output is already there", default=False)

    probabilities: bool = _advanced(
        "also write the probability of each class: <image>.npy, of volumes <volume>.probabilities.nii.gz", default=False
    )
    uncertainty: bool = _advanced(
        "also write how unsure each pixel is, 0 to 255: <image>.uncertainty.png, .tif or .nii.gz as the masks",
        default=False,
    )
    polygons: Annotated[str, OneOf(("geojson", "gpkg"))] | None = _advanced(
        "also write what is predicted as polygons: <image>.geojson, or .gpkg; needs images with a place",
        const="geojson",
    )
    also: tuple[Annotated[str, OneOf(("nifti", "rtstruct"))], ...] = _advanced(
        "of DICOM series: also write the masks as <series>.nii.gz, or as contours, <series>.rtstruct.dcm", default=()
    )
    coco: bool = _advanced("of objects: also write all of them into one file of COCO, objects.json", default=False)
    min_size: Natural | None = _advanced(
        "of objects: leave out those of fewer pixels (default: what is small for the training objects)",
        metavar="PIXELS",
    )
    drop_border: bool = _advanced("of objects: leave out those that touch the border of the image", default=False)
    tta: bool = _advanced(
        "average over mirrored and turned copies of the image, as far as training used them", default=False
    )
    ensemble: tuple[Source, ...] = _advanced("average with these models", default=(), metavar="MODEL", grows=True)
    boundary: bool = _advanced("with --truth: also boundary IoU and HD95, of volumes in mm", default=False)
    mask_suffix: str | None = _advanced(
        "true masks are named <image><suffix>.<ext> (default: detected)", metavar="SUFFIX", may_be_empty=True
    )
    label_column: str | None = _advanced(
        "with --truth of polygons in the world: the column that says their class, as in training", metavar="NAME"
    )
    tile_size: Natural | None = _advanced(
        "side of a tile in pixels, after scaling, for objects without what it must see around; auto: tiles only where"
        " the whole image does not fit (default: auto)",
        metavar="PIXELS",
        auto=True,
    )
    overlap: Count | None = _advanced(
        "of tiles; auto: so much that tiles change nothing, where that is possible (default: auto)",
        metavar="PIXELS",
        auto=True,
    )
    scale: Positive | None = _advanced(
        "only for a Pytorch-UNet .pth: the --scale that it was trained with (default: 0.5)", metavar="FACTOR"
    )
    file: Path | None = None


def parse_args(description: str) -> PredictSettings:
    """The settings from the command line; the model and its preprocessing are described by the model's config.json."""
    usage = "python predict.py --model MODEL --input FILES [FILES ...] --output DIR [flags]"
    parser = Arguments(description, usage, HABITS)
    add_settings(parser, PredictSettings)
    args = PredictSettings(**checked(PredictSettings, vars(parser.parse_args())))
    if args.boundary and not args.truth:
        parser.error("--boundary needs --truth, the folder of true masks to score against")
    file_name = "" if args.output.is_dir() else args.output.name.lower()
    if args.polygons and file_name.endswith(".png"):
        parser.error(f"--output {args.output}: --polygons needs a mask with a place; give a .tif file, or a folder")
    if file_name.endswith(MASK_FILES):
        return replace(args, file=args.output, output=args.output.parent)
    if file_name.endswith((*IMAGE_SUFFIXES, *VOLUME_SUFFIXES, *FORMAT_REMEDIES, *TABLES)):
        parser.error(
            f"--output {args.output}: a mask is a file .png, .tif, .nii.gz or .dcm; give one of these, or a folder"
        )
    return args
