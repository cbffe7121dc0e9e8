"""The flags of predict.py, a line for each. Precision, device and number of processes belong to the launch profile."""

import argparse
from pathlib import Path

from runtime import cli as arg


def parse_args(description: str) -> argparse.Namespace:
    """Nothing about the model or the preprocessing is asked for: it is in the model's config.json."""
    parser = arg.Arguments(description=description)
    parser.add_argument("--model", required=True, help="model folder, Hub id, .onnx file, or a Pytorch-UNet .pth")
    parser.add_argument("--scale", type=arg.positive, help="of a Pytorch-UNet .pth, which does not hold it: 0.5")
    parser.add_argument("--input", required=True, nargs="+", help="files, folders (searched recursively), globs")
    parser.add_argument(
        "--output", required=True, type=arg.path, help="folder; masks are <relative stem>.png or .nii.gz"
    )
    parser.add_argument("--overlay", action="store_true", help="also write <relative stem>.overlay.png")
    parser.add_argument("--probabilities", action="store_true", help="also <relative stem>.npy, .probabilities.nii.gz")
    tile_size, overlap = arg.auto_or(arg.natural), arg.auto_or(arg.count)
    parser.add_argument(
        "--tile-size", type=tile_size, default="auto", help="in pixels at the model's scale; auto: where needed"
    )
    parser.add_argument("--overlap", type=overlap, default="auto", help="of tiles; auto: exact where possible")
    parser.add_argument(
        "--tta", action="store_true", help="average over the flips and turns that the model was trained on"
    )
    parser.add_argument("--ensemble", nargs="+", default=[], metavar="MODEL", help="average with these models")
    parser.add_argument("--truth", type=Path, help="folder of true masks to score against; also writes metrics.json")
    parser.add_argument("--boundary", action="store_true", help="with --truth: boundary IoU, HD95; of volumes in mm")
    parser.add_argument("--mask-suffix", help="true masks are named <relative stem><suffix>.<ext>; default: detected")
    parser.add_argument("--overwrite", action="store_true", help="predict again what is there already")
    args = parser.parse_args()
    if args.boundary and not args.truth:
        parser.error("--boundary needs --truth, the folder of true masks to score against")
    args.tile_size = None if args.tile_size == "auto" else args.tile_size
    args.overlap = None if args.overlap == "auto" else args.overlap
    return args
