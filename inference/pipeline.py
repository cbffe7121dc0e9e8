"""Prediction of many images: reading, computing and writing overlap."""

import math
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from torch import Tensor

from data_utils.image_io.reader import read_image
from data_utils.image_io.regions import ArrayRegions, open_regions
from data_utils.image_io.tiff import check_pages, is_tiff
from data_utils.image_io.volumes import read_volume_header
from data_utils.visualize import to_rgb
from inference.batches import batches_of
from inference.inputs import Job, find_jobs
from inference.outputs.disk import check_disk
from inference.outputs.images import PredictionWriter, Score
from inference.predictor import Predictor
from inference.provenance import provenance_of, record_provenance
from inference.tiling import Tiling, band_length
from runtime.console import say, track
from runtime.errors import DataError, MemoryShortage
from runtime.memory import memory_shortage
from runtime.parallel import default_workers, pipelined

ERRORS_OF_ONE_FILE = (DataError, MemoryShortage, OSError)  # the others are predicted all the same
REMEDY = "give --tile-size {}, or a smaller one than before"


@dataclass(frozen=True)
class Work:
    """The work of a call of predict.py.

    Args:
        images: the number of inputs.
        batches: the jobs to do, in batches that are computed together.
        finished: those jobs that have their outputs already, and are only scored.
    """

    images: int
    batches: list[list[Job]]
    finished: set[Job]


def plan_work(args: Namespace, predictor: Predictor, writer: PredictionWriter) -> Work:
    """Find the inputs, check the output folder, and print how images are tiled and which masks exist already."""
    config = predictor.config
    channels, stacks = config.in_channels, config.preprocess.spacing if config.dims == 3 else None
    jobs = find_jobs(args.input, args.output, writer.extensions, args.truth, args.mask_suffix, channels, stacks)
    finished = {job for job in jobs if writer.is_finished(job)}
    todo = [job for job in jobs if job not in finished]
    tilings: Counter[Tiling] = Counter()
    for (size, spacing), images in Counter((job.size, job.spacing) for job in todo).items():
        tilings.update({tiling: images for tiling in predictor.tilings(size, spacing) if tiling} if size else {})
    for tiling, images in tilings.items():
        say(f"{images} {'volumes' if len(tiling.size) == 3 else 'images'} in {tiling}")

    # masks compress well, overlays do not, and probabilities are written as they are, of a volume twice
    bytes_of_pixel = 0.05 + 2 * args.overlay + 4 * predictor.config.num_classes * args.probabilities
    check_disk(args.output, int(bytes_of_pixel * sum(job.pixels * (2 if job.volume else 1) for job in todo)))
    record_provenance(args.output, provenance_of(args), args.overwrite)
    if finished:
        say(f"{len(finished)} of {len(jobs)} masks are there already; --overwrite predicts them again")
    batch_of = cache(lambda size: None if len(size) == 3 or predictor.in_windows(size) else predictor.batch_of(size))
    to_score = [[job] for job in jobs if job in finished and args.truth]
    return Work(len(jobs), batches_of(todo, batch_of) + to_score, finished)


class PredictionPipeline:
    """Reads, predicts, writes and scores images; what was finished before is only scored."""

    def __init__(self, predictor: Predictor, writer: PredictionWriter, finished: set[Job]) -> None:
        self.predictor, self.writer, self.finished = predictor, writer, finished

    def run(self, batches: list[list[Job]]) -> Iterator[tuple[Job, Score | Exception | None]]:
        """Each job as it is done, with its score if it has a true mask, or the error that stopped it."""
        threads = min(8, max(2, default_workers(self.predictor.device)))
        return pipelined(batches, self._read, self._compute, ERRORS_OF_ONE_FILE, threads)

    def _read(self, job: Job) -> "ReadImage | None":
        """Read ahead in a thread; None for jobs that are read while they are computed, or not at all."""
        if job in self.finished or job.volume or (job.size and self.predictor.in_windows(job.size)):
            return None
        if job.size is None and is_tiff(job.image):
            check_pages(job.image)
        shows_image = self.writer.shows_image
        tensors, size, pixels = self.predictor.inputs(job.image, job.name, job.page, keep_pixels=shows_image)
        if not shows_image:
            return ReadImage(tensors, size)
        if pixels is None or pixels.shape[:2] != size:  # decoded with less detail than an overlay shows
            pixels = read_image(job.image, job.name, job.page)
        return ReadImage(tensors, size, ArrayRegions(to_rgb(pixels)))

    def _compute(self, batch: list[tuple[Job, "ReadImage | None"]]) -> list[Callable[[], Score | None]]:
        """Compute the logits of a batch; returns a function for each image that finishes it in a thread."""
        first, read = batch[0]
        if first in self.finished:
            return [partial(self.writer.score, first)]
        with memory_shortage(first.name, REMEDY.format(64 if first.volume else 512)):
            if read is None:
                score = self._volume(first) if first.volume else self._in_windows(first)
                return [lambda: score]
            images = [(job, image) for job, image in batch if image is not None]
            logits = self.predictor.in_batch([i.tensors for _, i in images], [i.size for _, i in images])
        return [
            partial(self._write, job, image.size, image.shown, of_image)
            for (job, image), of_image in zip(images, logits, strict=True)
        ]

    def _volume(self, job: Job) -> Score | None:
        assert job.volume is not None
        size = job.size or read_volume_header(job.volume, job.name).size  # which says why there is none
        bands = self.predictor.bands(job.volume, job.name)
        return self.writer.write(job, size, self._tracked(bands, job, size), None)

    def _tracked(self, bands: Iterator[Tensor], job: Job, size: tuple[int, ...]) -> Iterator[Tensor]:
        """With a progress bar, where there are several."""
        count = math.ceil(size[0] / band_length(self.predictor.config.num_classes, size))
        return track(bands, count, job.image.name, unit="band") if count > 1 else bands

    def _in_windows(self, job: Job) -> Score | None:
        with open_regions(job.image, job.page) as regions:
            if not regions.in_windows:
                say(
                    f"{job.name}: cannot be read in parts, so the whole decoded image is kept in memory",
                    every_process=True,
                )
            bands = self.predictor.bands(regions, job.name)
            return self.writer.write(job, regions.size, self._tracked(bands, job, regions.size), regions)

    def _write(self, job: Job, size: tuple[int, int], shown: ArrayRegions | None, logits: Tensor) -> Score | None:
        # few rows at a time take less memory; a GPU would have each of them wait for what else is to be computed
        bands = logits.split(band_length(len(logits), size) if logits.is_cpu else size[0], dim=1)
        with memory_shortage(job.name, REMEDY.format(512)):
            return self.writer.write(job, size, bands, shown)


class ReadImage(NamedTuple):
    """An image on its way: (C, h, w) for each network, its own (H, W), and how an overlay shows it."""

    tensors: list[Tensor]
    size: tuple[int, int]
    shown: ArrayRegions | None = None
