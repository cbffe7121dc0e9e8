"""Write a model for other programs, if their own runtime answers as predict.py does.

python -m inference.export runs/x/model model.onnx
python -m inference.export runs/x/model model.pt2 --to torch
"""

from pathlib import Path

from inference.export.export_format import MASKS_ARE_EQUAL, Options, export_proved
from inference.export.export_formats import EXPORT_FORMATS
from inference.export.proof import CHECKED
from runtime import cli
from runtime.console import say
from runtime.errors import WriteError
from runtime.script import run_script
from unet.model import UNet


def main() -> None:
    """Export a model folder or a Hub id from the command line."""
    parser = cli.Arguments(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="model folder or Hub id")
    parser.add_argument(
        "output", type=cli.non_empty_path, help="the file to write; the folder with --to hub and openvino"
    )
    parser.add_argument("--to", choices=sorted(EXPORT_FORMATS), default="onnx", help="the format; see docs/export.md")
    parser.add_argument("--license", help="license of the model, such as CC-BY-4.0; with --to hub and bioimageio")
    author = "who made the model; with --to bioimageio, several times for several"
    parser.add_argument("--author", action="append", metavar="NAME", help=author)
    answer = "answer the class of each pixel, and not logits; with --to openvino"
    parser.add_argument("--mask", action="store_true", default=None, help=answer)
    args = parser.parse_args()
    options = Options(license=args.license, author=args.author, mask=args.mask, folder=Path(args.model))
    model = UNet.from_pretrained(args.model)
    export_format = EXPORT_FORMATS[args.to]
    try:
        export_proved(export_format, model, args.output, options)
    except OSError as error:
        raise WriteError(f"{args.output}: cannot be written ({error})") from error
    sizes = len(CHECKED[model.config.dims])
    proof = MASKS_ARE_EQUAL if args.mask else export_format.proof
    say(f"wrote {args.output}; in {export_format.runtime} {proof} on {sizes} image sizes")


if __name__ == "__main__":
    run_script(main)
