"""Prediction of many images: reading, computing and writing overlap."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from data_utils.image_io.reader import read_image
from data_utils.image_io.tiff import check_pages, is_tiff
from data_utils.image_io.volumes import read_volume_header
from data_utils.image_io.windowed import WindowedArray, WindowedImage, open_windowed_file
from data_utils.visualize import to_rgb
from inference.args import PredictSettings
from inference.batches import batches_of, share_of
from inference.inputs import InputRules, find_jobs, named_job
from inference.kinds import Score, new_output_kind
from inference.outputs.disk import check_disk
from inference.outputs.images import ReadMissing, missing_reader
from inference.outputs.jobs import MASK, ImageJob, Job, RasterJob, VolumeJob
from inference.outputs.polygons import check_places
from inference.outputs.writer import PredictionWriter
from inference.predictor import Predictor
from inference.provenance import provenance_of, record_provenance
from inference.readers import NetworkInputs
from inference.scoring.truth import ScoreError
from inference.tiling import Tiling, strip_length
from inference.tiling.sharing import SharedRows
from runtime.console import say, track
from runtime.errors import DataError, MemoryShortage
from runtime.files import remove_leftovers
from runtime.memory import memory_shortage
from runtime.mesh import Mesh
from runtime.parallel import default_workers, pipelined
from unet.config import UNetConfig

INPUTS = {2: "images", 3: "volumes"}  # number of axes -> their name
ERRORS_OF_ONE_FILE = (DataError, MemoryShortage, OSError)  # the other files are still predicted
REMEDY = "give --tile-size {}, or a smaller one than before"


@dataclass(frozen=True)
class Work:
    """The work of a call of predict.py.

    Args:
        jobs: all jobs of the call.
        batches: the jobs to predict, in batches that are computed together.
        finished: the jobs whose outputs exist already; they are only scored.
    """

    jobs: list[Job]
    batches: list[list[Job]]
    finished: set[Job]


def prepare_work(args: PredictSettings, predictor: Predictor, writer: PredictionWriter) -> Work:
    """Find the inputs, check the output folder, and print how images are tiled and which masks exist already."""
    jobs = _jobs_of_call(args, predictor.config, writer)
    output_folders: set[Path] = set()
    for job in jobs:
        output_folders.update(job.file(extension).parent for extension in writer.extensions)
    for folder in output_folders:
        remove_leftovers(folder)
    finished = {job for job in jobs if writer.is_finished(job)}
    unfinished = [job for job in jobs if job not in finished]
    _say_tilings(unfinished, predictor)
    check_disk(args.output, _bytes_to_write(unfinished, args, predictor.config.num_classes))
    if args.file is None:
        record_provenance(args.output, provenance_of(args), args.overwrite)
    if finished:
        outputs = writer.output_format.outputs
        say(f"{len(finished)} of {len(jobs)} {outputs} are there already; --overwrite predicts them again")

    @cache
    def batch_key(size: tuple[int, ...]) -> tuple[Hashable, int] | None:
        if predictor.needs_windows(size):
            return None
        return predictor.batch_key(size)

    batches = batches_of(unfinished, batch_key)
    if args.truth:
        batches += [[job] for job in jobs if job in finished]
    return Work(jobs, batches, finished)


def _jobs_of_call(args: PredictSettings, config: UNetConfig, writer: PredictionWriter) -> list[Job]:
    """A job for each input, with its truth if the call names the truth."""
    output_format = writer.output_format
    reads_places = config.preprocess.place or bool(config.preprocess.bands)
    rules = InputRules(
        config.in_channels,
        stack_spacing=config.preprocess.spacing if config.dims == 3 else None,
        bands=config.preprocess.bands,
        in_sets=output_format.has_objects,
        reads_places=reads_places,
        keeps_place=output_format.writes_rasters,
    )
    truth = None
    if args.truth:
        truth = new_output_kind(writer).truth(args.truth, args.mask_suffix, reads_places=reads_places)
    output = args.output if args.file is None else args.file.with_suffix("")
    jobs = find_jobs(args.input, output, writer.extensions, rules, truth)
    if args.file is not None:
        jobs = [named_job(jobs, args.file, args.overwrite)]
        if output_format.writes_rasters and jobs[0].file(MASK).suffix != args.file.suffix:
            raise DataError(f"--output {args.file}: the image has no place in the world; give a file .png")
    if args.polygons:
        check_places(jobs, f".{args.polygons}")
    return jobs


def _say_tilings(jobs: Iterable[Job], predictor: Predictor) -> None:
    """Print each tiling and the number of inputs that are cut by it."""
    shapes = Counter((job.size, job.spacing, isinstance(job, RasterJob)) for job in jobs if job.size)
    tilings: Counter[Tiling] = Counter()
    for (size, spacing, is_raster), count in shapes.items():
        low_rows = is_raster and predictor.needs_windows(size)
        # networks of an ensemble that cut alike count once
        for tiling in dict.fromkeys(predictor.tilings(size, spacing, low_rows=low_rows)):
            if tiling is not None:
                tilings[tiling] += count
    for tiling, count in tilings.items():
        say(f"{count} {INPUTS[len(tiling.size)]} in {tiling}")


def _bytes_to_write(jobs: Iterable[Job], args: PredictSettings, num_classes: int) -> int:
    """The estimated largest size in bytes of the outputs of jobs on the disk."""
    # masks compress well, overlays do not, and probabilities are written as they are
    bytes_of_pixel = 0.05
    if args.overlay:
        bytes_of_pixel += 2
    if args.uncertainty:
        bytes_of_pixel += 1
    if args.probabilities:
        bytes_of_pixel += 4 * num_classes
    return int(bytes_of_pixel * sum(job.pixels * job.disk_copies for job in jobs))


class PredictionPipeline:
    """Reads, predicts, writes and scores images and volumes; jobs that were finished before are only scored."""

    def __init__(self, predictor: Predictor, writer: PredictionWriter, finished: set[Job]) -> None:
        self.predictor = predictor
        self.finished = finished
        image_steps = ImageSteps(predictor, writer)
        self._steps: dict[type[Job], Steps] = {
            ImageJob: image_steps,
            RasterJob: image_steps,
            VolumeJob: VolumeSteps(predictor, writer),
        }

    def run(self, batches: list[list[Job]]) -> Iterator[tuple[Job, Score | Exception | None]]:
        """Each job as it is done, with its score if it has a true mask, or the error that stopped it."""
        threads = min(8, max(2, default_workers(self.predictor.device)))
        return pipelined(batches, self._read, self._compute, ERRORS_OF_ONE_FILE, threads)

    def run_together(
        self, batches: list[list[Job]], shared_rows: SharedRows
    ) -> Iterator[tuple[Job, Score | Exception | None]]:
        """`run` for inputs that the processes of a group predict together; the leader has the results."""
        self.predictor.shared_rows = shared_rows
        jobs = list(chain.from_iterable(batches))
        if shared_rows.mesh.is_first:
            numbers = {job: number for number, job in enumerate(jobs)}
            compute = partial(self._lead, shared_rows, numbers)
            yield from pipelined(batches, self._read, compute, ERRORS_OF_ONE_FILE, threads=1)
            shared_rows.end()
        else:
            for number in shared_rows.inputs():
                with shared_rows.follow(ERRORS_OF_ONE_FILE):
                    self._steps[type(jobs[number])].follow(jobs[number])
        self.predictor.shared_rows = None

    def _lead(
        self, shared_rows: SharedRows, numbers: dict[Job, int], batch: list[tuple[Job, NetworkInputs | None]]
    ) -> list[Callable[[], Score | None]]:
        """`_compute` for the only job of a batch, with the help of the other processes."""
        ((job, _),) = batch
        with shared_rows.lead(numbers[job]):
            return self._compute(batch)

    def _read(self, job: Job) -> NetworkInputs | None:
        """Read inputs ahead in a thread. Returns None for jobs that are read while they are computed, or not at all."""
        if job in self.finished:
            return None
        return self._steps[type(job)].read(job)

    def _compute(self, batch: list[tuple[Job, NetworkInputs | None]]) -> list[Callable[[], Score | None]]:
        """Compute the logits of a batch; returns a function for each job that finishes it in a thread."""
        first, _ = batch[0]
        steps = self._steps[type(first)]
        if first in self.finished:
            return [partial(steps.scorer.score, first)]
        with memory_shortage(first.name, REMEDY.format(first.smaller_tile)):
            return steps.compute(batch)


def divide_work(
    work: Work, predictor: Predictor, mesh: Mesh, processes: int
) -> tuple[list[list[Job]], list[list[Job]]]:
    """The batches that this process's group predicts together, one by one, and those of this process alone."""
    together: list[list[Job]] = []
    alone: list[list[Job]] = []
    for batch in work.batches:
        if mesh.size > 1 and batch[0] not in work.finished and _is_shareable(batch[0], predictor):
            together.append(batch)
        else:
            alone.append(batch)
    shared_batches = share_of(together, mesh.group, processes // mesh.size)
    own_batches = share_of(alone, mesh.rank_of(mesh.slab), processes)
    return shared_batches, own_batches


def _is_shareable(job: Job, predictor: Predictor) -> bool:
    return job.size is not None and predictor.is_shareable(job.size, job.spacing)


class Steps(Protocol):
    """The steps from an input of one kind, whose jobs it takes, to its files and score."""

    @property
    def scorer(self) -> Any:
        """The scorer of predictions that were written before."""

    def read(self, job: Any) -> NetworkInputs | None:
        """The inputs of the networks, read ahead in a thread; None if they are read while they are computed."""

    def compute(self, batch: Any) -> list[Callable[[], Score | None]]:
        """Compute the logits of a batch of (job, inputs); returns a function for each job that finishes it."""

    def follow(self, job: Any) -> None:
        """Help another process, which leads, with a job that both predict together."""


class ImageSteps:
    """The steps from an image to its files and score."""

    def __init__(self, predictor: Predictor, writer: PredictionWriter) -> None:
        self.predictor = predictor
        kind = new_output_kind(writer)
        self.writer = kind.image_writer
        self.scorer = kind.image_scorer
        self.shows_image = writer.shows_image

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

    def compute(self, batch: list[tuple[ImageJob, NetworkInputs | None]]) -> list[Callable[[], Score | None]]:
        """Compute the logits of images; returns a function for each that writes it."""
        first, first_inputs = batch[0]
        if first_inputs is None:
            score = self._predict_in_windows(first)
            return [lambda: score]
        images = [(job, inputs) for job, inputs in batch if inputs is not None]
        tensors = [inputs.tensors for _, inputs in images]
        sizes = [inputs.size for _, inputs in images]
        logits = self.predictor.logits_of_batch(tensors, sizes)
        finishing: list[Callable[[], Score | None]] = []
        for (job, inputs), image_logits in zip(images, logits, strict=True):
            finishing.append(partial(self._finish, job, inputs, image_logits))
        return finishing

    def follow(self, job: ImageJob) -> None:
        """Help another process with an image that it predicts in windows."""
        with open_windowed_file(job.source, job.page) as picture:
            for _ in self.predictor.strips(picture, job.name):
                pass

    def _predict_in_windows(self, job: ImageJob) -> Score | None:
        with open_windowed_file(job.source, job.page) as picture:
            if not picture.decodes_windows:
                say(
                    f"{job.name}: cannot be read in parts, so the whole decoded image is kept in memory",
                    every_process=True,
                )
            strips = tracked(self.predictor.strips(picture, job.name), self.predictor, job, picture.size)
            return self._write(job, picture.size, strips, picture, missing_reader(picture))

    def _finish(self, job: ImageJob, inputs: NetworkInputs, logits: Tensor) -> Score | None:
        # few rows at a time take less memory; but on a GPU each strip would wait for other work in the queue
        rows = strip_length(len(logits), inputs.size) if logits.is_cpu else inputs.size[0]
        image = None if inputs.pixels is None else WindowedArray(inputs.pixels)
        with memory_shortage(job.name, REMEDY.format(job.smaller_tile)):
            return self._write(job, inputs.size, logits.split(rows, dim=1), image, inputs.missing_reader())

    def _write(
        self,
        job: ImageJob,
        size: tuple[int, int],
        strips: Iterable[Tensor],
        image: WindowedImage | None,
        read_missing: ReadMissing | None,
    ) -> Score | None:
        """Write and score an image. Raises ScoreError for an unusable true mask, once the prediction is on the disk."""
        if job.truth is None:
            self.writer.write(job, size, strips, image, None, read_missing)
            return None
        with self.scorer.open(job, size) as scorer:
            self.writer.write(job, size, strips, image, scorer, read_missing)
        if scorer.problem:
            raise ScoreError(f"{scorer.problem}; the prediction is written anyway") from scorer.problem
        return scorer.score()


class VolumeSteps:
    """The steps from a volume to its files and score."""

    def __init__(self, predictor: Predictor, writer: PredictionWriter) -> None:
        self.predictor = predictor
        kind = new_output_kind(writer)
        self.writer = kind.volume_writer
        self.scorer = kind.volume_scorer

    def read(self, job: VolumeJob) -> None:
        """Returns None: a volume may take half the memory, so it is not read ahead."""

    def compute(self, batch: list[tuple[VolumeJob, None]]) -> list[Callable[[], Score | None]]:
        """Compute and write a volume, strip by strip; returns a function that scores it."""
        ((job, _),) = batch
        size = job.size or read_volume_header(job.volume, job.name).size  # raises if the header is bad
        strips = tracked(self.predictor.strips(job.volume, job.name), self.predictor, job, size)
        mask = self.writer.write(job, size, strips)
        if job.truth is None:
            return [lambda: None]
        return [partial(self._score, job, mask)]

    def follow(self, job: VolumeJob) -> None:
        """Help another process with a volume."""
        for _ in self.predictor.strips(job.volume, job.name):
            pass

    def _score(self, job: VolumeJob, mask: np.ndarray) -> Score:
        try:
            return self.scorer.score_mask(job, mask)
        except (DataError, OSError) as error:
            raise ScoreError(f"{error}; the prediction is written anyway") from error


def tracked(strips: Iterator[Tensor], predictor: Predictor, job: Job, size: tuple[int, ...]) -> Iterator[Tensor]:
    """The strips of a job, with a progress bar if there are several."""
    count = math.ceil(size[0] / strip_length(predictor.config.num_classes, size))
    if count <= 1:
        return strips
    return track(strips, count, job.image.name, unit="strip")
