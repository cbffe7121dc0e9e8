"""Prediction of many images and volumes: reading, computing and writing overlap."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_utils.image_io.reader import open_source, read_image
from data_utils.image_io.volume_formats import Spacing
from data_utils.image_io.volumes import read_volume_header
from data_utils.image_io.windowed import WindowedArray
from inference.network_inputs import NetworkInputs
from inference.predictor import Predictor
from inference.requested_outputs import RequestedOutputs
from inference.tiling.stream import strip_length
from runtime.console import say, track
from runtime.errors import DataError, MemoryShortage
from runtime.machine import default_workers, memory_shortage
from runtime.parallel import run_pipeline
from tasks.drawing import to_rgb
from tasks.job import OVERLAY, Job
from tasks.prediction import PredictedImage, Prediction
from tasks.prediction_files import read_missing
from tasks.scoring.masks import ScoreError
from tasks.task import Scores

ERRORS_OF_ONE_FILE = (DataError, MemoryShortage, OSError)  # the other files are still predicted
IMAGE_REMEDY = "give --tile-size 512, or a smaller one than before"
VOLUME_REMEDY = "give --tile-size 64, or a smaller one than before"
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
        """Each job as it is done, with its scores if it has a true mask, or the error that stopped it."""
        threads = min(8, max(2, default_workers(self.predictor.device)))
        return run_pipeline(batches, self._read, self._compute, ERRORS_OF_ONE_FILE, threads)

    def _read(self, job: Job) -> NetworkInputs | None:
        """Read the inputs of the networks ahead, in a thread.

        Returns None for large jobs: a volume may take half the memory.
        """
        if job.volume or (job.size and self.predictor.needs_windows(job.size)):
            return None
        inputs = self.predictor.inputs(job.source, job.name)
        if OVERLAY not in self.requested.extensions:
            return inputs._replace(pixels=None)
        pixels = inputs.pixels
        if pixels is None or pixels.shape[:2] != inputs.size:  # the image was decoded in less detail
            pixels = read_image(job.source, job.name)
        return inputs._replace(pixels=to_rgb(pixels))

    def _compute(self, batch: list[ReadJob]) -> list[Finish]:
        """Predict a batch of jobs; returns a function for each that finishes it in a thread."""
        first, inputs = batch[0]
        with memory_shortage(first.name, VOLUME_REMEDY if first.volume else IMAGE_REMEDY):
            if inputs is not None:
                return self._compute_images([(job, inputs) for job, inputs in batch if inputs is not None])
            if first.volume is not None:
                return [self._compute_volume(first)]
            scores = self._predict_in_windows(first)
            return [lambda: scores]

    def _compute_images(self, images: list[tuple[Job, NetworkInputs]]) -> list[Finish]:
        logits = self.predictor.logits_of_batch([inputs for _, inputs in images])
        finishes: list[Finish] = []
        for (job, inputs), image_logits in zip(images, logits, strict=True):
            finishes.append(partial(self._finish_image, job, inputs, image_logits))
        return finishes

    def _finish_image(self, job: Job, inputs: NetworkInputs, logits: Tensor) -> Scores | None:
        # few rows at a time take less memory; but on a GPU each strip would wait for other work in the queue
        rows = inputs.size[0]
        if logits.is_cpu:
            rows = strip_length(len(logits), inputs.size)
        picture = None
        if inputs.pixels is not None:
            picture = WindowedArray(inputs.pixels)
        with memory_shortage(job.name, IMAGE_REMEDY):
            with torch.inference_mode():  # in which the logits were computed
                strips = logits.split(rows, dim=1)
            prediction = self._decode(job, inputs.size, iter(strips), missing=inputs.missing)
            return self.finish(PredictedImage(job, inputs.size, prediction, picture, inputs.missing))

    def _predict_in_windows(self, job: Job) -> Scores | None:
        """Predict, write and score an image that may be too large for memory."""
        with open_source(job.source) as picture:
            if not picture.decodes_windows:
                say(
                    f"{job.name}: cannot be read in parts, so the whole decoded image is kept in memory",
                    every_process=True,
                )
            strips = self._tracked(self.predictor.strips(picture, job.name), job, picture.size)
            missing = read_missing(picture, _folder_of(job))
            prediction = self._decode(job, picture.size, strips, missing=missing)
            return self.finish(PredictedImage(job, picture.size, prediction, picture, missing))

    def _compute_volume(self, job: Job) -> Finish:
        """Predict a volume, which may be larger than memory."""
        assert job.volume is not None
        header = read_volume_header(job.volume, job.name)
        strips = self._tracked(self.predictor.strips(job.volume, job.name), job, header.size)
        prediction = self._decode(job, header.size, strips, header.spacing)
        return partial(self.finish, PredictedImage(job, header.size, prediction))

    def _decode(
        self,
        job: Job,
        size: tuple[int, ...],
        strips: Iterator[Tensor],
        spacing: Spacing | None = None,
        missing: np.ndarray | None = None,
    ) -> Prediction:
        """The prediction from the logits of a job; see `decode_strips`."""
        wanted = self.requested.wanted(job)
        folder = _folder_of(job)
        return self.predictor.decode(strips, size, spacing, job.name, wanted=wanted, missing=missing, folder=folder)

    def _tracked(self, strips: Iterator[Tensor], job: Job, size: tuple[int, ...]) -> Iterator[Tensor]:
        """The strips of a large job while they are computed, with a progress bar if there are several."""
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
