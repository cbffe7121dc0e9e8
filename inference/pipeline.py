"""Prediction of many images: reading, computing and writing overlap."""

from collections.abc import Iterator
from functools import partial

from inference.kinds import Score
from inference.network_inputs import NetworkInputs
from inference.outputs.jobs import ImageJob, Job, RasterJob, VolumeJob
from inference.outputs.requested_outputs import RequestedOutputs
from inference.predictor import Predictor
from inference.steps import REMEDY, Finish, ImageSteps, Steps, VolumeSteps
from runtime.errors import DataError, MemoryShortage
from runtime.memory import memory_shortage
from runtime.parallel import default_workers, run_pipeline

ERRORS_OF_ONE_FILE = (DataError, MemoryShortage, OSError)  # the other files are still predicted
ReadJob = tuple[Job, NetworkInputs | None]  # None for a job that is read while it is computed, or not at all
JobResult = tuple[Job, Score | Exception | None]


class PredictionPipeline:
    """Reads, predicts, writes and scores images and volumes; jobs that were finished before are only scored."""

    def __init__(self, predictor: Predictor, requested: RequestedOutputs, finished_jobs: set[Job]) -> None:
        self.predictor = predictor
        self.finished_jobs = finished_jobs
        image_steps = ImageSteps(predictor, requested)
        self._steps: dict[type[Job], Steps] = {
            ImageJob: image_steps,
            RasterJob: image_steps,
            VolumeJob: VolumeSteps(predictor, requested),
        }

    def run(self, batches: list[list[Job]]) -> Iterator[JobResult]:
        """Each job as it is done, with its score if it has a true mask, or the error that stopped it."""
        threads = min(8, max(2, default_workers(self.predictor.device)))
        return run_pipeline(batches, self._read, self._compute, ERRORS_OF_ONE_FILE, threads)

    def _read(self, job: Job) -> NetworkInputs | None:
        """Read inputs ahead in a thread. Returns None for jobs that are read while they are computed, or not at all."""
        if job in self.finished_jobs:
            return None
        return self._steps[type(job)].read(job)

    def _compute(self, batch: list[ReadJob]) -> list[Finish]:
        """Compute the logits of a batch; returns a function for each job that finishes it in a thread."""
        first, _ = batch[0]
        steps = self._steps[type(first)]
        if first in self.finished_jobs:
            return [partial(steps.scorer.score, first)]
        with memory_shortage(first.name, REMEDY.format(first.smaller_tile)):
            return steps.compute(batch)
