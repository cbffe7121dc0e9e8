"""Write a model for other programs, if their own runtime answers as predict.py does.

python -m inference.export runs/x/model model.onnx
python -m inference.export runs/x/model model.zip --to bioimageio --author NAME --license ID
"""

import argparse
from pathlib import Path

from inference.export.export_format import Options, export_proved
from inference.export.export_formats import EXPORT_FORMATS, REMOVED_FORMATS
from inference.export.proof import CHECKED
from runtime.cli import Arguments
from runtime.console import say
from runtime.errors import WriteError
from runtime.script import run_script
from runtime.settings import reader
from unet.model import UNet


def main() -> None:
    """Export a model folder or a Hub id from the command line."""
    parser = Arguments(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="model folder or Hub id")
    parser.add_argument("output", type=reader(Path), help="the file to write")
    formats = f"the format, one of {', '.join(EXPORT_FORMATS)}; see docs/export.md (default: %(default)s)"
    parser.add_argument("--to", type=known_format, metavar="FORMAT", default="onnx", help=formats)
    parser.add_argument("--license", help="license of the model, such as CC-BY-4.0; with --to bioimageio")
    author = "who made the model; with --to bioimageio, several times for several"
    parser.add_argument("--author", action="append", metavar="NAME", help=author)
    args = parser.parse_args()
    options = Options(license=args.license, author=args.author, folder=Path(args.model))
    model = UNet.from_pretrained(args.model)
    export_format = EXPORT_FORMATS[args.to]
    try:
        export_proved(export_format, model, args.output, options)
    except OSError as error:
        raise WriteError(f"{args.output}: cannot be written ({error})") from error
    sizes = len(CHECKED[model.config.dims])
    say(f"wrote {args.output}; in {export_format.runtime} {export_format.proof} on {sizes} image sizes")


def known_format(name: str) -> str:
    """A name of EXPORT_FORMATS, as --to takes it."""
    if name in REMOVED_FORMATS:
        raise argparse.ArgumentTypeError(f"{name} is no longer written: {REMOVED_FORMATS[name]}")
    if name not in EXPORT_FORMATS:
        raise argparse.ArgumentTypeError(f"{name}: take one of {', '.join(EXPORT_FORMATS)}")
    return name


if __name__ == "__main__":
    run_script(main)
