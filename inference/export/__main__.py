"""Write a model for other programs, if their own runtime answers as predict.py does.

python -m inference.export runs/x/model model.onnx
python -m inference.export runs/x/model model.zip --to bioimageio --author NAME --license ID
"""

import argparse
from pathlib import Path

from inference.export.bioimageio import Owner, export_bioimageio
from inference.export.onnx import export_onnx
from inference.export.proof import CHECKED, TOLERANCE
from runtime.cli import Arguments, check_free
from runtime.console import say
from runtime.errors import SettingsError, WriteError
from runtime.script import run_script
from runtime.settings import reader
from runtime.values import Source
from unet.model import UNet

FORMATS = {  # name -> what its runtime has proved
    "onnx": f"in onnxruntime its logits agree with torch's to {TOLERANCE:g}",
    "bioimageio": "in bioimageio.core its probabilities agree with torch's to 0.0001, and its own test passed",
}
REMOVED_FORMATS = {  # name -> what to do instead
    "openvino": "OpenVINO reads the file of --to onnx",
    "torch": "use --to onnx, or `pip install .` and Predictor",
    "hub": "use --to onnx, or upload the model folder: Predictor and predict.py open it by its Hub id",
}


def main() -> None:
    """Export a model folder or a Hub id from the command line."""
    parser = Arguments(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=reader(Source), help="model folder or Hub id")
    parser.add_argument("output", type=reader(Path), help="the file to write")
    formats = f"the format, one of {', '.join(FORMATS)}; see docs/export.md (default: %(default)s)"
    parser.add_argument("--to", type=known_format, metavar="FORMAT", default="onnx", help=formats)
    parser.add_argument("--license", help="license of the model, such as CC-BY-4.0; with --to bioimageio")
    author = "who made the model; with --to bioimageio, several times for several"
    parser.add_argument("--author", action="append", metavar="NAME", help=author)
    parser.add_argument("--overwrite", action="store_true", help="replace the file that is there")
    args = parser.parse_args()
    if args.output.is_dir():
        raise SettingsError(f"{args.output}: is a folder, and --to {args.to} writes a file")
    if not args.output.parent.is_dir():
        raise SettingsError(f"{args.output}: the folder {args.output.parent} is not there")
    check_free(str(args.output), [args.output], overwrite=args.overwrite)
    model = UNet.from_pretrained(args.model)
    try:
        if args.to == "bioimageio":
            export_bioimageio(model, args.output, Owner(args.author or (), args.license or ""), Path(args.model))
        elif args.license or args.author:
            raise SettingsError(f"--license and --author are not for --to {args.to}")
        else:
            export_onnx(model, args.output)
    except OSError as error:
        raise WriteError(f"{args.output}: cannot be written ({error})") from error
    say(f"wrote {args.output}; {FORMATS[args.to]} on {len(CHECKED[model.config.dims])} image sizes")


def known_format(name: str) -> str:
    """A name of FORMATS, as --to takes it."""
    if name in REMOVED_FORMATS:
        raise argparse.ArgumentTypeError(f"{name} is no longer written: {REMOVED_FORMATS[name]}")
    if name not in FORMATS:
        raise argparse.ArgumentTypeError(f"{name}: take one of {', '.join(FORMATS)}")
    return name


if __name__ == "__main__":
    run_script(main)
