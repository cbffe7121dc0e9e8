"""The work of a call of predict.py: its inputs, what is done of them, and which process does the rest."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from inference.batches import group_jobs
from inference.disk import check_disk
from inference.input_files import files_of_patterns
from inference.input_pages import Truth
from inference.inputs import InputRules, jobs_of_files, named_job
from inference.predict_settings import PredictSettings
from inference.predictor import Predictor
from inference.provenance import provenance_of, record_provenance
from inference.requested_outputs import RequestedOutputs
from inference.scoring.true_masks import TruthFolder
from inference.scoring.true_points import TruePoints
from inference.tiling import Tiling
from inference.written_files import check_unfinished, check_written
from runtime.console import say
from runtime.files import remove_leftovers
from tasks.job import Job
from tasks.landmarks.write import PointFormat
from tasks.polygons import check_places
from tasks.prediction_format import MaskFormat, PredictionFormat
from unet.config import UNetConfig

INPUTS = {2: "images", 3: "volumes"}  # number of axes -> their name


@dataclass(frozen=True)
class Work:
    """The work of a call of predict.py.

    Args:
        jobs: all jobs of the call.
        batches: the jobs to predict, in batches that are computed together.
        finished_jobs: the jobs whose outputs exist already; they are only scored.
    """

    jobs: list[Job]
    batches: list[list[Job]]
    finished_jobs: set[Job]


def prepare_work(args: PredictSettings, predictor: Predictor, requested: RequestedOutputs) -> Work:
    """Find the inputs, check the output folder, and print how images are tiled and which masks exist already."""
    jobs = _jobs_of_call(args, predictor.config, requested)
    _remove_leftovers(jobs, requested)
    finished_jobs = {job for job in jobs if args.file is None and requested.is_finished(job)}
    unfinished = [job for job in jobs if job not in finished_jobs]
    check_unfinished(args, unfinished, requested)
    _say_tilings(unfinished, predictor)
    check_disk(args.output, _bytes_to_write(unfinished, args, predictor.config.num_classes))
    if args.file is None:
        record_provenance(args.output, provenance_of(args), args.overwrite)
    if finished_jobs:
        outputs = requested.output_format.outputs
        say(f"{len(finished_jobs)} of {len(jobs)} {outputs} are there already; --overwrite predicts them again")
    batches = _batches(unfinished, predictor)
    if args.truth:
        batches += [[job] for job in jobs if job in finished_jobs]
    return Work(jobs, batches, finished_jobs)


def _jobs_of_call(args: PredictSettings, config: UNetConfig, requested: RequestedOutputs) -> list[Job]:
    """A job for each input, with its truth if the call names the truth."""
    output_format = requested.output_format
    reads_places = config.preprocess.place or bool(config.preprocess.bands)
    rules = InputRules(
        config.in_channels,
        stack_spacing=config.preprocess.spacing if config.dims == 3 else None,
        bands=config.preprocess.bands,
        in_sets=bool(output_format.object_classes),
        reads_places=reads_places,
        keeps_place=output_format.writes_rasters,
    )
    truth = _truth_of_call(args, output_format, reads_places=reads_places)
    output = args.file or args.output
    files = files_of_patterns(args.input, output, in_sets=rules.in_sets, truth=args.truth, mask_suffix=args.mask_suffix)
    jobs = jobs_of_files(files, output, rules, truth)
    if args.file is not None:
        jobs = [named_job(jobs, args.file, output_format.mask_extensions[0])]
    check_written(args, jobs, [file.path for file in files], requested)
    if args.polygons:
        check_places(jobs, f".{args.polygons}")
    return jobs


def _truth_of_call(args: PredictSettings, output_format: PredictionFormat, *, reads_places: bool) -> Truth | None:
    """The place of the true masks or points that the call names, if any."""
    if args.truth is None:
        return None
    if isinstance(output_format, PointFormat):
        return TruePoints(args.truth, output_format.task)
    assert isinstance(output_format, MaskFormat)
    return TruthFolder(
        args.truth,
        args.mask_suffix,
        output_format.class_folders,
        output_format.object_classes,
        output_format.true_class_map,
        reads_places,
    )


def _remove_leftovers(jobs: Iterable[Job], requested: RequestedOutputs) -> None:
    """Remove the temporary files that a killed call has left in the folders of outputs."""
    folders: set[Path] = set()
    for job in jobs:
        folders.update(job.file(extension).parent for extension in requested.extensions)
    for folder in folders:
        remove_leftovers(folder)


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


def _bytes_to_write(jobs: Sequence[Job], args: PredictSettings, num_classes: int) -> int:
    """The estimated largest size in bytes of the outputs of jobs on the disk."""
    # masks compress well, overlays do not, and probabilities are written as they are
    bytes_per_pixel = 0.05
    if args.overlay:
        bytes_per_pixel += 2
    if args.uncertainty:
        bytes_per_pixel += 1
    if args.probabilities:
        bytes_per_pixel += 4 * num_classes
    pixels = [job.pixels for job in jobs]
    return int(bytes_per_pixel * (sum(pixels) + max(pixels, default=0)))  # a large one lies in temporary files too


def _batches(jobs: Sequence[Job], predictor: Predictor) -> list[list[Job]]:
    """The jobs in batches that are computed together."""

    @cache
    def batch_key(size: tuple[int, ...]) -> tuple[Hashable, int] | None:
        if predictor.needs_windows(size):
            return None
        return predictor.batch_key(size)

    return group_jobs(jobs, batch_key)
