"""Prediction of many images and volumes: reading, computing and writing overlap."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_utils.image_io.formats import VolumeFile
from data_utils.image_io.reader import open_source, read_image
from data_utils.image_io.volume_formats import Spacing
from data_utils.image_io.volumes import read_volume_header
from data_utils.image_io.windowed import WindowedArray, WindowedImage
from inference.network_inputs import NetworkInputs
from inference.predictor import Predictor
from inference.requested_outputs import RequestedOutputs
from inference.tiling.stream import strip_length
from runtime.console import say, track
from runtime.errors import DataError, MemoryShortage
from runtime.machine import default_workers, memory_shortage
from runtime.parallel import map_ahead
from tasks.drawing import to_rgb
from tasks.job import OVERLAY, Job
from tasks.prediction import PredictedImage, decode_strips
from tasks.prediction_files import read_missing
from tasks.scoring.masks import ScoreError
from tasks.task import Scores

ERRORS_OF_ONE_FILE = (DataError, MemoryShortage, OSError)  # the other files are still predicted
IMAGE_REMEDY = "give --tile-size 512, or a smaller one than before"
VOLUME_REMEDY = "give --tile-size 64, or a smaller one than before"
BATCHES_AHEAD = 2  # batches read while another one is computed
ReadJob = tuple[Job, NetworkInputs | None]  # None for a job that is read while it is computed
Finish = Callable[[], Scores | None]  # writes and scores a job that is computed


class PredictionPipeline:
    """Reads, predicts, writes and scores images and volumes.

    Args:
        finished_jobs: the jobs whose outputs exist already; these are not written again.
    """

    def __init__(self, predictor: Predictor, requested: RequestedOutputs, finished_jobs: set[Job]) -> None:
        self.predictor = predictor
        self.requested = requested
        self.output_format = requested.output_format
        self.finished_jobs = finished_jobs

    def run(self, batches: list[list[Job]]) -> Iterator[tuple[Job, Scores | Exception | None]]:
        """Each job as it is done, with its scores if it has a true mask, or the error that stopped it.

        The calling thread computes; others read a few batches ahead, and write and score what is computed. Memory is
        bounded, since each stage waits for the next one.
        """
        threads = min(8, max(2, default_workers(self.predictor.device)))
        ahead = max(threads, BATCHES_AHEAD * max(map(len, batches), default=1))
        jobs = chain.from_iterable(batches)
        with closing(map_ahead(partial(_attempt, self._read), jobs, ahead=ahead, threads=threads)) as inputs:
            yield from map_ahead(_finished, self._computed(batches, inputs), ahead=threads, threads=threads)

    def _read(self, job: Job) -> NetworkInputs | None:
        """Read the inputs of the networks; None for large jobs, of which a volume may take half the memory."""
        if job.volume or (job.size and self.predictor.needs_windows(job.size)):
            return None
        inputs = self.predictor.inputs(job.source, job.name)
        picture = inputs.picture if OVERLAY in self.requested.extensions else None
        if picture is not None:
            pixels = picture.array
            if pixels.shape[:2] != inputs.size:  # the image was decoded in less detail
                pixels = read_image(job.source, job.name)
            picture = WindowedArray(to_rgb(pixels))
        return inputs._replace(picture=picture)

    def _computed(
        self, batches: list[list[Job]], inputs: Iterator[NetworkInputs | Exception | None]
    ) -> Iterator[tuple[Job, Finish | Exception]]:
        """Each job with the function that finishes it, or with its error; an error of computing is that of a batch."""
        for batch in batches:
            ready = []
            for job, job_inputs in zip(batch, islice(inputs, len(batch)), strict=True):
                if isinstance(job_inputs, Exception):
                    yield job, job_inputs
                else:
                    ready.append((job, job_inputs))
            finishes = []
            if ready:
                finishes = _attempt(self._compute, ready)
            if isinstance(finishes, Exception):
                finishes = [finishes] * len(ready)
            for (job, _), finish in zip(ready, finishes, strict=True):
                yield job, finish

    def _compute(self, batch: list[ReadJob]) -> list[Finish]:
        """Predict a batch of jobs; returns a function for each that finishes it in another thread."""
        jobs, inputs = zip(*batch, strict=True)
        first = jobs[0]
        with memory_shortage(first.name, VOLUME_REMEDY if first.volume else IMAGE_REMEDY):
            if inputs[0] is None:
                return [self._compute_in_strips(first)]
            logits = self.predictor.logits_of_batch(inputs)
        return [partial(self._finish_image, *image) for image in zip(jobs, inputs, logits, strict=True)]

    def _finish_image(self, job: Job, inputs: NetworkInputs, logits: Tensor) -> Scores | None:
        # few rows at a time take less memory; but on a GPU each strip would wait for other work in the queue
        rows = inputs.size[0]
        if logits.is_cpu:
            rows = strip_length(len(logits), inputs.size)
        with memory_shortage(job.name, IMAGE_REMEDY):
            with torch.inference_mode():  # in which the logits were computed
                strips = logits.split(rows, dim=1)
            image = self._predicted(job, inputs.size, strips, picture=inputs.picture, missing=inputs.missing)
            return self.finish(image)

    def _compute_in_strips(self, job: Job) -> Finish:
        """Predict a volume, or an image that may be too large for memory, which is finished while its file is open."""
        if job.volume is not None:
            header = read_volume_header(job.volume, job.name)
            strips = self._strips(job, job.volume, header.size)
            return partial(self.finish, self._predicted(job, header.size, strips, spacing=header.spacing))
        with open_source(job.source) as picture:
            if not picture.decodes_windows:
                say(
                    f"{job.name}: cannot be read in parts, so the whole decoded image is kept in memory",
                    every_process=True,
                )
            missing = read_missing(picture, _folder_of(job))
            strips = self._strips(job, picture, picture.size)
            scores = self.finish(self._predicted(job, picture.size, strips, picture=picture, missing=missing))
        return lambda: scores

    def _predicted(
        self,
        job: Job,
        size: tuple[int, ...],
        strips: Iterable[Tensor],
        *,
        spacing: Spacing | None = None,
        picture: WindowedImage | None = None,
        missing: np.ndarray | None = None,
    ) -> PredictedImage:
        """The prediction from the logits of a job; see `decode_strips`."""
        wanted = self.requested.wanted(job)
        folder = _folder_of(job)
        size_of_logits = self.predictor.logits_size(size, spacing)
        prediction = decode_strips(
            self.predictor.task, strips, size_of_logits, job.name, wanted=wanted, missing=missing, folder=folder
        )
        return PredictedImage(job, size, prediction, picture, missing)

    def _strips(self, job: Job, source: WindowedImage | VolumeFile, size: tuple[int, ...]) -> Iterator[Tensor]:
        """The logits of a large job, with a progress bar if they come in several strips."""
        strips = self.predictor.strips(source, job.name)
        count = math.ceil(size[0] / strip_length(self.predictor.config.num_classes, size))
        if count <= 1:
            return strips
        return track(strips, count, job.image.name, unit="strip")

    def finish(self, image: PredictedImage) -> Scores | None:
        """Write and score an image. Raises ScoreError for an unusable true mask, once the prediction is on the disk."""
        if image.job not in self.finished_jobs:
            self.output_format.write(image, self.requested.extensions)
        if image.job.truth is None:
            return None
        try:
            return self.output_format.score(self.predictor.task, image, boundary=self.requested.boundary)
        except (DataError, OSError) as error:
            raise ScoreError(f"{error}; the prediction is written anyway") from error


def _folder_of(job: Job) -> Path:
    """The folder of a job's outputs, which is made: large arrays lie there in files meanwhile."""
    folder = job.output.parent
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call, or the error that stops one file."""
    try:
        return function(*arguments)
    except ERRORS_OF_ONE_FILE as error:
        return error


def _finished(computed: tuple[Job, Finish | Exception]) -> tuple[Job, Scores | Exception | None]:
    """A job with what `PredictionPipeline.run` yields of it."""
    job, finish = computed
    if isinstance(finish, Exception):
        return job, finish
    return job, _attempt(finish)
