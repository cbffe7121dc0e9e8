"""Prediction for a page in a browser: from a file of a moderate size to its mask, and HTML that shows the mask."""

import math
from base64 import b64encode
from dataclasses import replace
from html import escape
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np

from data_utils.image_io.reader import read_header, read_image
from inference.inputs import find_inputs
from inference.pipeline import ERRORS_OF_ONE_FILE, PredictionPipeline
from inference.predictor import Predictor
from inference.requested_outputs import RequestedOutputs
from runtime.device import best_device
from runtime.errors import ImageError
from tasks import new_format
from tasks.drawing import save_picture
from tasks.job import OVERLAY, Job
from tasks.prediction import PredictedImage
from tasks.prediction_format import MaskFormat, PredictionFormat
from tasks.task import Scores
from unet.config import UNetConfig

MAX_PIXELS = 40_000_000
SHORTEST_SIDE = 64  # to about as much a network pads a shorter side
COLORS = 4  # bands that take as much memory as a picture
MAX_BYTES = 100_000_000
LIMITS = f"{MAX_PIXELS // 10**6} megapixels and {MAX_BYTES // 10**6} MB"
SHOWN_SIDE = 1000  # pixels; if an image has twice as many, every second row and column is shown
STYLE = """
.pictures {display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr))}
.pictures figure {margin: 0; min-width: 0}
.pictures img {width: 100%; max-height: 75vh; object-fit: contain; margin: 0; image-rendering: pixelated}
.classes {display: flex; flex-wrap: wrap; gap: 0.25rem 1.5rem; padding: 0; margin: 1rem 0 0; list-style: none}
.classes li {margin: 0; overflow-wrap: anywhere}
.classes span {display: inline-block; width: 1em; height: 1em; margin-right: 0.5em; vertical-align: -0.15em;
  border: 1px solid grey}
"""


class PagePipeline(PredictionPipeline):
    """The pipeline for one image, whose predicted labels it keeps."""

    labels: np.ndarray

    def finish(self, image: PredictedImage) -> Scores | None:
        self.labels = image.prediction.labels
        return super().finish(image)


class PagePredictor:
    """A model that predicts one uploaded file at a time, by predict.py's own pipeline.

    Args:
        model: anything that `Predictor.from_pretrained` takes.
    """

    def __init__(self, model: str | Path) -> None:
        self.predictor = Predictor.from_pretrained(model, best_device())
        self.output_format = new_format(self.predictor.config)
        extensions = (*self.output_format.extensions, OVERLAY)
        self.requested = RequestedOutputs(self.output_format, extensions)

    def __call__(self, upload: str | None) -> tuple[str, str | None]:
        """HTML of the prediction and the path of the mask, in a folder beside the file.

        For a bad file the HTML describes the problem, and the path is None.
        """
        if upload is None:
            return "", None
        file = Path(upload)
        try:
            job = page_job(file, self.predictor.config, self.output_format)
            pipeline = PagePipeline(self.predictor, self.requested, finished_jobs=set())
            ((_, problem),) = pipeline.run([[job]])
            if isinstance(problem, Exception):
                raise problem
            return self._html(job, pipeline.labels), self._download(job)
        except ERRORS_OF_ONE_FILE as error:
            line = str(error).replace(str(file), file.name)  # a visitor knows the name, not the path on this machine
            return f'<p role="alert">{escape(line)}</p>', None

    def _html(self, job: Job, labels: np.ndarray) -> str:
        """The pictures of a prediction that was written, with the meaning of their colors; to be shown with STYLE."""
        section = self.output_format.section
        figures = [_figure("Overlay", read_image(job.file(OVERLAY), job.image.name))]
        if isinstance(self.output_format, MaskFormat):
            figures.insert(0, _figure("Mask", section.colorize(labels)))
        items = []
        for color, text in section.legend_entries(labels):
            square = f'<span style="background: {color}"></span>' if color else ""
            items.append(f"<li>{square}{escape(text)}</li>")
        return f'<div class="pictures">{"".join(figures)}</div><ul class="classes">{"".join(items)}</ul>'

    def _download(self, job: Job) -> str:
        """The path of the mask, or of an archive of the masks of all classes."""
        if not self.output_format.class_folders:
            return str(self.output_format.mask_file(job))
        archive = job.output.with_name(f"{job.output.name}.zip")
        with ZipFile(archive, "w") as stream:
            for extension in self.output_format.extensions:
                stream.write(job.file(extension), job.file(extension).relative_to(job.output.parent))
        return str(archive)


def page_job(file: Path, config: UNetConfig, output_format: PredictionFormat) -> Job:
    """The job of predict.py for an image file, or the first page of a TIFF; the mask goes to a folder beside it.

    Files too large for a page raise ImageError; only their size and header are read.
    """
    remedy = f"this page takes up to {LIMITS}; use predict.py for larger images"
    if file.stat().st_size > MAX_BYTES:
        raise ImageError(f"{file.name}: has {file.stat().st_size / 1e6:,.1f} MB, {remedy}")
    job, *_ = find_inputs([str(file)], file.parent / "mask", config, output_format)
    job = replace(job, place=None)  # the page shows a picture
    if job.volume is not None:
        raise ImageError(f"{file.name}: is a volume, but this page takes images; use predict.py for it")
    (height, width), mode = read_header(job.source, f"{file.name}: image")
    size = f"{width:,} x {height:,} pixels"
    bands = int(mode.partition(" x ")[2] or 1)
    if bands > COLORS:
        size += f" in {bands:,} bands"
    if max(height, SHORTEST_SIDE) * max(width, SHORTEST_SIDE) * math.ceil(bands / COLORS) > MAX_PIXELS:
        raise ImageError(f"{file.name}: has {size}, {remedy}")
    return job


def _figure(title: str, pixels: np.ndarray) -> str:
    """A picture (H, W, 3) in HTML that holds it, so that no further file is written."""
    step = max(1, max(pixels.shape) // SHOWN_SIDE)
    buffer = BytesIO()
    save_picture(buffer, pixels[::step, ::step])
    address = f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"
    return f'<figure><figcaption>{title}</figcaption><img src="{address}" alt="{title.lower()}"></figure>'
