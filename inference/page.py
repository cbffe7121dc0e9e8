"""Prediction for a page in a browser: from a file of a moderate size to its mask, and HTML that shows the mask."""

from base64 import b64encode
from html import escape
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np
from PIL import Image

from data_utils.image_io.reader import read_header, read_image
from inference.inputs import find_jobs
from inference.pipeline import ERRORS_OF_ONE_FILE, PredictionPipeline
from inference.predictor import Predictor
from inference.requested_outputs import RequestedOutputs
from runtime.device import best_device
from runtime.errors import ImageError
from tasks import new_format
from tasks.drawing import to_rgb
from tasks.job import OVERLAY, Job
from tasks.prediction_files import OVERLAY_LEVEL
from tasks.prediction_format import LegendEntry, MaskFormat, PredictionFormat

MAX_PIXELS = 40_000_000
MAX_BYTES = 100_000_000
LIMITS = f"{MAX_PIXELS // 10**6} megapixels and {MAX_BYTES // 10**6} MB"
SHOWN_SIDE = 1000  # pixels; if an image has twice as many, every second row and column is shown
STYLE = """
.pictures {display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr))}
.pictures figure {margin: 0; min-width: 0}
.pictures .stack {position: relative; max-width: 100%}
.pictures img {position: absolute; inset: 0; width: 100%; height: 100%; margin: 0}
.pictures .mask {image-rendering: pixelated}
.pictures .tint {opacity: var(--mask-opacity, 0.5)}
.gradio-container:not(:has(.pictures)) .with-mask {display: none}
.classes {display: flex; flex-wrap: wrap; gap: 0.25rem 1.5rem; padding: 0; margin: 1rem 0 0; list-style: none}
.classes li {margin: 0; overflow-wrap: anywhere}
.classes span {display: inline-block; width: 1em; height: 1em; margin-right: 0.5em; vertical-align: -0.15em;
  border: 1px solid grey}
"""


class PagePredictor:
    """A model that predicts one uploaded file at a time, by predict.py's own pipeline.

    Args:
        model: anything that `Predictor.from_pretrained` takes.
    """

    def __init__(self, model: str | Path) -> None:
        device = best_device()
        self.predictor = Predictor.from_pretrained(model, device)
        self.output_format = new_format(self.predictor.config)
        extensions = [*self.output_format.mask_extensions, *self.output_format.extensions]
        if not isinstance(self.output_format, MaskFormat):  # only masks are laid over the image by the browser
            extensions.append(OVERLAY)
        self.requested = RequestedOutputs(self.output_format, self.predictor.task, tuple(extensions))

    def __call__(self, upload: str | None) -> tuple[str, str | None]:
        """HTML of the prediction and the path of the mask, in a folder beside the file.

        For a bad file the HTML describes the problem, and the path is None.
        """
        if upload is None:
            return "", None
        file = Path(upload)
        try:
            job = page_job(file)
            self._predict(job)
            return self._html(job, file), self._download(job)
        except ERRORS_OF_ONE_FILE as error:
            line = str(error).replace(str(file), file.name)  # a visitor knows the name, not the path on this machine
            return f'<p role="alert">{escape(line)}</p>', None

    def _predict(self, job: Job) -> None:
        """Write the prediction of a job. Raises the error that stops it."""
        pipeline = PredictionPipeline(self.predictor, self.requested, finished_jobs=set())
        ((_, problem),) = pipeline.run([[job]])
        if isinstance(problem, Exception):
            raise problem

    def _html(self, job: Job, file: Path) -> str:
        """The picture of the prediction that was written for a file."""
        output_format = self.output_format
        if not isinstance(output_format, MaskFormat):
            return picture_html(read_image(job.file(OVERLAY), file.name), output_format)
        return prediction_html(read_image(file, file.name), output_format.read_written(job).labels, output_format)

    def _download(self, job: Job) -> str:
        """The path of the mask, or of an archive of the masks of all classes."""
        if not self.output_format.class_folders:
            return str(self.output_format.mask_file(job))
        files = [job.file(extension) for extension in self.output_format.mask_extensions]
        archive = job.output.with_name(f"{job.output.name}.zip")
        with ZipFile(archive, "w") as stream:
            for file in files:
                stream.write(file, file.relative_to(job.output.parent))
        return str(archive)


def page_job(file: Path) -> Job:
    """The job of predict.py for an image file, or the first page of a TIFF; the mask goes to a folder beside it.

    Files too large for a page raise ImageError; only their size and header are read.
    """
    remedy = f"this page takes up to {LIMITS}; use predict.py for larger images"
    if file.stat().st_size > MAX_BYTES:
        raise ImageError(f"{file.name}: has {file.stat().st_size / 1e6:,.1f} MB, {remedy}")
    job = find_jobs([str(file)], file.parent / "mask")[0]
    if job.volume is not None:
        raise ImageError(f"{file.name}: is a volume, but this page takes images; use predict.py for it")
    height, width = job.size or read_header(file, f"{file.name}: image")[0]
    if height * width > MAX_PIXELS:
        raise ImageError(f"{file.name}: has {width:,} x {height:,} pixels, {remedy}")
    return job


def prediction_html(image: np.ndarray, mask: np.ndarray, output_format: MaskFormat) -> str:
    """Mask, overlay and legend of an image (H, W, C) and its prediction (H, W), to be shown with STYLE.

    The browser blends the overlay by `--mask-opacity`: at the default, one half, it equals the overlay of predict.py.
    """
    colors = output_format.colors
    step = max(1, max(mask.shape) // SHOWN_SIDE)
    indices = Image.fromarray(output_format.shades(mask)[::step, ::step])
    indices.putpalette(colors.tobytes())
    layer = _address(indices, transparency=0)  # an overlay leaves class 0 as it is
    photo = _address(Image.fromarray(to_rgb(image[::step, ::step])))
    stack = _stack(*mask.shape)
    paper = f"background: rgb{tuple(colors[0].tolist())}"
    legend = [_legend_item(entry) for entry in output_format.legend_entries(mask)]
    return f"""<div class="pictures">
<figure><figcaption>Mask</figcaption>
{stack}<img class="mask" style="{paper}" src="{layer}" alt="mask"></div></figure>
<figure><figcaption>Overlay</figcaption>
{stack}<img src="{photo}" alt="image"><img class="mask tint" src="{layer}" alt="its mask"></div></figure>
</div><ul class="classes">{"".join(legend)}</ul>"""


def picture_html(overlay: np.ndarray, output_format: PredictionFormat) -> str:
    """An overlay (H, W, 3) with its legend, to be shown with STYLE."""
    height, width = overlay.shape[:2]
    step = max(1, max(height, width) // SHOWN_SIDE)
    source = _address(Image.fromarray(overlay[::step, ::step]))
    stack = _stack(height, width)
    legend = []
    for name, color in zip(output_format.names, output_format.colors.tolist(), strict=True):
        legend.append(_legend_item(LegendEntry(tuple(color), name)))
    return f"""<div class="pictures">
<figure><figcaption>Points</figcaption>
{stack}<img src="{source}" alt="image with points"></div></figure>
</div><ul class="classes">{"".join(legend)}</ul>"""


def _stack(height: int, width: int) -> str:
    """The opening tag of a stack of pictures of one size."""
    return f'<div class="stack" style="aspect-ratio: {width} / {height}; width: calc(75vh * {width} / {height})">'


def _legend_item(entry: LegendEntry) -> str:
    """An entry of a legend in HTML."""
    square = "" if entry.color is None else f'<span style="background: rgb{entry.color}"></span>'
    return f"<li>{square}{escape(entry.text)}</li>"


def _address(picture: Image.Image, **options: int) -> str:
    """A picture as a URL that holds it, so that no file is written."""
    buffer = BytesIO()
    picture.save(buffer, "png", compress_level=OVERLAY_LEVEL, **options)
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"
