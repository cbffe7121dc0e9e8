"""The steps from an input to its files and its score, for images and for volumes."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from data_utils.image_io.reader import read_image
from data_utils.image_io.tiff import check_pages, is_tiff
from data_utils.image_io.volumes import read_volume_header
from data_utils.image_io.windowed import WindowedArray, open_windowed
from data_utils.visualize import to_rgb
from inference.kinds import Score, new_output_kind
from inference.network_inputs import NetworkInputs
from inference.outputs.images import PredictedImage, missing_reader
from inference.outputs.jobs import ImageJob, Job, VolumeJob
from inference.outputs.requested_outputs import RequestedOutputs
from inference.predictor import Predictor
from inference.scoring.truth import ScoreError
from inference.tiling import strip_length
from runtime.console import say, track
from runtime.errors import DataError
from runtime.memory import memory_shortage

REMEDY = "give --tile-size {}, or a smaller one than before"
Finish = Callable[[], Score | None]  # writes and scores a job whose logits are computed


class Steps(Protocol):
    """The steps from an input of one kind, whose jobs it takes, to its files and score."""

    @property
    def scorer(self) -> Any:
        """The scorer of predictions that were written before."""

    def read(self, job: Any) -> NetworkInputs | None:
        """The inputs of the networks, read ahead in a thread; None if they are read while they are computed."""

    def compute(self, batch: Any) -> list[Finish]:
        """Compute the logits of a batch of (job, inputs); returns a function for each job that finishes it."""


class ImageSteps:
    """The steps from an image to its files and score."""

    def __init__(self, predictor: Predictor, requested: RequestedOutputs) -> None:
        self.predictor = predictor
        kind = new_output_kind(requested)
        self.writer = kind.image_writer
        self.scorer = kind.image_scorer
        self.shows_image = requested.shows_image

    def read(self, job: ImageJob) -> NetworkInputs | None:
        """The inputs of the networks; None for an image that is read in windows."""
        if job.size and self.predictor.needs_windows(job.size):
            return None
        if job.size is None and is_tiff(job.image):
            check_pages(job.image)
        inputs = self.predictor.inputs(job.source, job.name, job.page, keep_pixels=self.shows_image)
        if not self.shows_image:
            return inputs
        pixels = inputs.pixels
        if pixels is None or pixels.shape[:2] != inputs.size:  # the image was decoded in less detail
            pixels = read_image(job.source, job.name, job.page)
        return inputs._replace(pixels=to_rgb(pixels))

    def compute(self, batch: list[tuple[ImageJob, NetworkInputs | None]]) -> list[Finish]:
        """Compute the logits of images; returns a function for each that writes it."""
        first, first_inputs = batch[0]
        if first_inputs is None:
            score = self._predict_in_windows(first)
            return [lambda: score]
        images = [(job, inputs) for job, inputs in batch if inputs is not None]
        tensors = [inputs.tensors for _, inputs in images]
        sizes = [inputs.size for _, inputs in images]
        logits = self.predictor.logits_of_batch(tensors, sizes)
        finishes: list[Finish] = []
        for (job, inputs), image_logits in zip(images, logits, strict=True):
            finishes.append(partial(self._finish, job, inputs, image_logits))
        return finishes

    def _predict_in_windows(self, job: ImageJob) -> Score | None:
        with open_windowed(job.source, job.page) as picture:
            if not picture.decodes_windows:
                say(
                    f"{job.name}: cannot be read in parts, so the whole decoded image is kept in memory",
                    every_process=True,
                )
            strips = track_progress(self.predictor.strips(picture, job.name), self.predictor, job, picture.size)
            return self._write(PredictedImage(job, picture.size, picture, missing_reader(picture)), strips)

    def _finish(self, job: ImageJob, inputs: NetworkInputs, logits: Tensor) -> Score | None:
        # few rows at a time take less memory; but on a GPU each strip would wait for other work in the queue
        rows = strip_length(len(logits), inputs.size) if logits.is_cpu else inputs.size[0]
        pixels = None if inputs.pixels is None else WindowedArray(inputs.pixels)
        image = PredictedImage(job, inputs.size, pixels, inputs.missing_reader())
        with memory_shortage(job.name, REMEDY.format(job.smaller_tile)):
            return self._write(image, logits.split(rows, dim=1))

    def _write(self, image: PredictedImage, strips: Iterable[Tensor]) -> Score | None:
        """Write and score an image. Raises ScoreError for an unusable true mask, once the prediction is on the disk."""
        if image.job.truth is None:
            self.writer.write(image, strips)
            return None
        with self.scorer.open(image.job, image.size) as scorer:
            self.writer.write(image, strips, scorer)
        if scorer.problem:
            raise ScoreError(f"{scorer.problem}; the prediction is written anyway") from scorer.problem
        return scorer.score()


class VolumeSteps:
    """The steps from a volume to its files and score."""

    def __init__(self, predictor: Predictor, requested: RequestedOutputs) -> None:
        self.predictor = predictor
        kind = new_output_kind(requested)
        self.writer = kind.volume_writer
        self.scorer = kind.volume_scorer

    def read(self, job: VolumeJob) -> None:
        """Returns None: a volume may take half the memory, so it is not read ahead."""

    def compute(self, batch: list[tuple[VolumeJob, None]]) -> list[Finish]:
        """Compute and write a volume, strip by strip; returns a function that scores it."""
        ((job, _),) = batch
        size = job.size or read_volume_header(job.volume, job.name).size  # raises if the header is bad
        strips = track_progress(self.predictor.strips(job.volume, job.name), self.predictor, job, size)
        mask = self.writer.write(job, size, strips)
        if job.truth is None:
            return [lambda: None]
        return [partial(self._score, job, mask)]

    def _score(self, job: VolumeJob, mask: np.ndarray) -> Score:
        try:
            return self.scorer.score_mask(job, mask)
        except (DataError, OSError) as error:
            raise ScoreError(f"{error}; the prediction is written anyway") from error


def track_progress(strips: Iterator[Tensor], predictor: Predictor, job: Job, size: tuple[int, ...]) -> Iterator[Tensor]:
    """The strips of a job, with a progress bar if there are several."""
    count = math.ceil(size[0] / strip_length(predictor.config.num_classes, size))
    if count <= 1:
        return strips
    return track(strips, count, job.image.name, unit="strip")
