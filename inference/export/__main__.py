"""Write a model in ONNX.

python -m inference.export runs/x/model model.onnx
"""

from inference.export.onnx import CHECKED, TOLERANCE, export
from runtime import cli
from runtime.console import say
from runtime.errors import WriteError
from unet.model import UNet


def main() -> None:
    """Export a model folder or a Hub id from the command line."""
    parser = cli.Arguments(description="Write a model in ONNX.")
    parser.add_argument("model", help="model folder or Hub id")
    parser.add_argument("output", type=cli.path, help="the .onnx file to write")
    args = parser.parse_args()
    model = UNet.from_pretrained(args.model)
    try:
        export(model, args.output)
    except OSError as error:
        raise WriteError(f"{args.output}: cannot be written ({error})") from error
    sizes = len(CHECKED[model.config.dims])
    say(f"wrote {args.output}; its logits agree with torch's to {TOLERANCE:g} on {sizes} image sizes")


if __name__ == "__main__":
    cli.run_script(main)
