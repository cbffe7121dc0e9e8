"""A page in the browser to try a model on: drop an image file, see its mask and overlay, download the mask.

python app.py --model runs/x/model

It needs Gradio: pip install 'gradio<7'. A Hugging Face Space can run it without changes.
"""

if __name__ == "__main__":  # first of all: the imports below take seconds
    from runtime.signals import begin_imports

    begin_imports()


import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from inference.page import LIMITS, MAX_BYTES, STYLE, PagePredictor
from runtime.cli import Arguments
from runtime.console import say
from runtime.errors import SettingsError, UsageError
from runtime.script import run_script
from runtime.settings import reader
from runtime.values import Natural, Source

MINUTES_TO_DELETION = 10
INTRODUCTION = f"""# Segment an image

Drop an image file of up to {LIMITS}; for larger ones use `predict.py`.
Of a TIFF, the first page is segmented. Image and mask are deleted after {MINUTES_TO_DELETION} minutes.
"""


def parse_args(description: str) -> argparse.Namespace:
    """Read the flags; in a Hugging Face Space, variables or the folder model/ beside this file replace them."""
    parser = Arguments(description=description)
    model = os.environ.get("MODEL") or None
    folder_beside = Path(__file__).with_name("model")
    if model is None and folder_beside.is_dir():
        model = str(folder_beside)
    parser.add_argument(
        "--model", type=reader(Source), default=model, help="as for predict.py; else $MODEL, else model/ beside app.py"
    )
    host = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")
    parser.add_argument(
        "--host", default=host, help="address to listen on; 0.0.0.0 is all of this machine's (default: %(default)s)"
    )
    parser.add_argument("--port", type=reader(Natural), help="default: the first free one from 7860")
    args = parser.parse_args()
    if args.model is None:
        raise UsageError("--model is missing, and there is no folder model/ beside app.py")
    return args


def serve(predict: PagePredictor, host: str, port: int | None) -> None:
    """Open the page; returns when the process is asked to stop."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio as gr
    except ImportError as error:
        raise SettingsError(f"{error}: pip install 'gradio<7'") from error

    with gr.Blocks(title="Segment an image", delete_cache=(60, 60 * MINUTES_TO_DELETION)) as page:
        gr.Markdown(INTRODUCTION)
        upload = gr.File(label="Image")  # a picture widget would decode the file, to 8 bits
        prediction = gr.HTML(label="Prediction")
        mask = gr.DownloadButton("Download the mask")
        upload.change(predict, upload, [prediction, mask], api_name="predict", concurrency_limit=1)
    try:
        _, url, _ = page.launch(
            server_name=host,
            server_port=port,
            share=False,
            ssr_mode=False,
            run_history=False,  # the browser would store the history
            footer_links=[],
            max_file_size=MAX_BYTES,  # a larger upload is stopped on its way, and Gradio shows "Error"
            css=STYLE,
            quiet=True,
            prevent_thread_lock=True,
        )
    except (OSError, OverflowError) as error:
        flags = f"--host {host}"
        if port:
            flags += f" --port {port}"
        raise SettingsError(f"{flags}: is in use, or not an address of this machine; choose another") from error
    say(f"open {url} in a browser; Ctrl-C ends the page")
    page.block_thread()


def main() -> None:
    args = parse_args(__doc__.splitlines()[0])
    Image.MAX_IMAGE_PIXELS = None  # the page itself reports images that are too large
    with TemporaryDirectory(prefix="segment-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder  # for uploads and the other files of Gradio
        serve(PagePredictor(args.model), args.host, args.port)


if __name__ == "__main__":
    run_script(main)
