"""The work of a call of predict.py: its inputs, what is done of them, and which process does the rest."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference.inputs import find_inputs, named_job
from inference.output_folder import (
    check_written,
    make_folder,
    provenance_of,
    record_provenance,
    recorded_since,
)
from inference.predict_settings import PredictSettings
from inference.predictor import Predictor
from inference.requested_outputs import RequestedOutputs
from inference.tiling.planning import Tiling
from inference.true_masks import TruthFolder
from inference.true_points import with_true_points
from runtime.console import say
from runtime.errors import DataError
from runtime.files import remove_leftovers
from tasks.job import Job
from tasks.landmarks.write import PointFormat
from tasks.polygons import check_places
from unet.config import UNetConfig

INPUTS = {2: "images", 3: "volumes"}  # number of axes -> their name


@dataclass(frozen=True)
class Work:
    """The work of a call of predict.py.

    Args:
        jobs: all jobs of the call.
        batches: the jobs to predict, in batches that are computed together.
        finished_jobs: the jobs whose outputs exist already; they are predicted only to be scored.
    """

    jobs: list[Job]
    batches: list[list[Job]]
    finished_jobs: set[Job]

    def share(self, process: int, processes: int) -> list[list[Job]]:
        """The batches of a process: all are dealt in turn, the largest first."""

        def pixels(batch: Sequence[Job]) -> int:
            return sum(math.prod(job.size or (0,)) for job in batch)

        return sorted(self.batches, key=pixels, reverse=True)[process::processes]


def prepare_work(args: PredictSettings, predictor: Predictor, requested: RequestedOutputs) -> Work:
    """Find the inputs, check the output folder, and print how images are tiled and which masks exist already."""
    jobs = _jobs_of_call(args, predictor.config, requested)
    folders: set[Path] = set()
    for job in jobs:
        folders.update(job.file(extension).parent for extension in requested.extensions)
    for folder in folders:
        remove_leftovers(folder)  # of a call that was killed
    since = recorded_since(args.output)
    may_be_finished = args.file is None and not args.overwrite
    finished_jobs = {job for job in jobs if may_be_finished and requested.is_finished(job, since)}
    unfinished = [job for job in jobs if job not in finished_jobs]
    check_written(args, jobs, finished_jobs, requested)
    predicted = jobs if args.truth else unfinished
    _say_tilings(predicted, predictor)
    make_folder(args.output)
    if args.file is None:
        record_provenance(args.output, provenance_of(args), args.overwrite)
    if finished_jobs:
        outputs = requested.output_format.outputs
        say(f"{len(finished_jobs)} of {len(jobs)} {outputs} are there already; --overwrite predicts them again")
    return Work(jobs, group_jobs(predicted, predictor), finished_jobs)


def _jobs_of_call(args: PredictSettings, config: UNetConfig, requested: RequestedOutputs) -> list[Job]:
    """A job for each input, with its truth if the call names the truth."""
    output_format = requested.output_format
    output = args.file or args.output
    jobs = find_inputs(args.input, output, config, output_format, truth=args.truth, mask_suffix=args.mask_suffix)
    if args.truth is not None and isinstance(output_format, PointFormat):
        jobs = with_true_points(args.truth, output_format.true_points(args.truth), jobs)
    elif args.truth is not None:
        truths = TruthFolder(args.truth, config, output_format, args.mask_suffix, args.label_column)
        jobs = truths.with_truths(jobs)
    if args.file is not None:
        jobs = [named_job(jobs, args.file, output_format.extensions[0])]
    if args.polygons:
        check_places(jobs, f".{args.polygons}")
    others = [job.name for job in jobs if not job.writes_segments]
    if args.also and others:
        raise DataError(f"--also {' '.join(args.also)}: {others[0]} is no DICOM series; leave the flag out")
    return jobs


def _say_tilings(jobs: Iterable[Job], predictor: Predictor) -> None:
    """Print each tiling and the number of inputs that are cut by it."""
    shapes = Counter((job.size, job.spacing) for job in jobs if job.size)
    tilings: Counter[Tiling] = Counter()
    for (size, spacing), count in shapes.items():
        # networks of an ensemble that cut alike count once
        for tiling in dict.fromkeys(predictor.tilings(size, spacing)):
            if tiling is not None:
                tilings[tiling] += count
    for tiling, count in tilings.items():
        say(f"{count} {INPUTS[len(tiling.size)]} in {tiling}")


def group_jobs(jobs: Iterable[Job], predictor: Predictor) -> list[list[Job]]:
    """Batches of images that the networks see at one size; each other job is a batch of its own.

    As in `batch_sampler.EvaluationSampler`, batches depend on the jobs only, so that results are the same with any
    number of processes.
    """
    batches: list[list[Job]] = []
    open_batches: dict[tuple, list[Job]] = {}  # the last batch of each size
    for job in jobs:
        if not job.size or job.volume is not None or predictor.needs_windows(job.size):
            batches.append([job])
            continue
        key = tuple(predictor.input_sizes(job.size))
        batch = open_batches.get(key)
        if batch is None or len(batch) >= predictor.batch_size(job.size):
            batch = open_batches[key] = []
            batches.append(batch)
        batch.append(job)
    return batches
