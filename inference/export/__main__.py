"""Write a model for other programs, if their own runtime answers as predict.py does.

python -m inference.export runs/x/model model.onnx
python -m inference.export runs/x/model model.pt2 --to torch
"""

from inference.export.proof import CHECKED, TOLERANCE
from inference.export.target import Options, export_proved
from inference.export.targets import TARGETS
from runtime import cli
from runtime.console import say
from runtime.errors import WriteError
from unet.model import UNet


def main() -> None:
    """Export a model folder or a Hub id from the command line."""
    parser = cli.Arguments(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="model folder or Hub id")
    parser.add_argument("output", type=cli.path, help="the file to write, or with --to hub the folder")
    parser.add_argument("--to", choices=sorted(TARGETS), default="onnx", help="the format; see docs/export.md")
    args = parser.parse_args()
    model = UNet.from_pretrained(args.model)
    target = TARGETS[args.to]
    try:
        export_proved(target, model, args.output, Options())
    except OSError as error:
        raise WriteError(f"{args.output}: cannot be written ({error})") from error
    sizes = len(CHECKED[model.config.dims])
    answer = f"in {target.runtime} its logits agree with torch's to {TOLERANCE:g} on {sizes} image sizes"
    say(f"wrote {args.output}; {answer}")


if __name__ == "__main__":
    cli.run_script(main)
