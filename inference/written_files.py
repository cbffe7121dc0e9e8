"""The files that a call of prediction will write: none is an input, a true mask, an annotation or a model."""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from data_utils.sources.walk import walk
from inference.predict_settings import PredictSettings
from inference.provenance import MODEL_FILES, RECORD, is_recorded
from inference.requested_outputs import RequestedOutputs
from runtime.errors import DataError
from tasks.job import LEGEND, Job
from tasks.objects.coco import COCO

METRICS = "metrics.json"
FileId = tuple[int, int]  # the device and number of a file, which all of its names share


def check_written(
    args: PredictSettings, jobs: Sequence[Job], inputs: Iterable[Path], requested: RequestedOutputs
) -> None:
    """Raises DataError if a file that will be written is no file, is written twice, or is one that is read."""
    if args.file is None and args.truth and args.truth.is_dir() and _id(args.truth) == _id(args.output):
        raise DataError(f"--output {args.output}: --truth {args.truth} would be overwritten; choose another folder")
    place = args.file or args.output
    read = {_id(path): use for path, use in _read_files(args, jobs, inputs)}
    for path in _written_files(args, jobs, requested):
        if not path.exists():
            continue
        if not path.is_file():
            raise DataError(f"--output {place}: {path} is there, and is no file; remove it, or choose another")
        if _id(path) in read:
            raise DataError(f"--output {place}: {path} is {read[_id(path)]}, not to be overwritten; choose another")


def check_unfinished(args: PredictSettings, unfinished: Iterable[Job], requested: RequestedOutputs) -> None:
    """Raises DataError if a file that no call of predict.py has recorded would be overwritten unasked."""
    if args.overwrite or (args.file is None and is_recorded(args.output)):
        return
    for job in unfinished:
        for path in requested.output_format.files(job, requested.extensions):
            if path.exists():
                raise DataError(
                    f"--output {args.file or args.output}: {path} is there already; --overwrite replaces it"
                )


def _written_files(args: PredictSettings, jobs: Sequence[Job], requested: RequestedOutputs) -> list[Path]:
    """All files that a call will write. Raises DataError if two of them have one path."""
    writers: dict[Path, Job | None] = {args.output / name: None for name in _names_of_all(args, requested)}
    for job in jobs:
        for path in requested.output_format.files(job, requested.extensions):
            other = writers.setdefault(path, job)
            if other is None:
                raise DataError(f"--input: {job.name} would write {path}, which is of all inputs; rename it")
            if other is not job:
                raise DataError(f"--input: {other.name} and {job.name} would both write {path}; {_remedy(other, job)}")
    return list(writers)


def _remedy(first: Job, second: Job) -> str:
    """How two inputs of one output are told apart: files of one name come from a pattern that the shell expanded."""
    if first.image.name != second.image.name or first.image.is_absolute() != second.image.is_absolute():
        return "give one of them"
    folder = os.path.commonpath([first.image.parent, second.image.parent])
    pattern = shlex.quote(os.path.join(folder, "**", first.image.name))
    return f"give one of them, or a pattern in quotes, which the shell does not expand: --input {pattern}"


def _names_of_all(args: PredictSettings, requested: RequestedOutputs) -> list[str]:
    """The names of the files that belong to all inputs together."""
    names = []
    if args.file is None:
        names += [RECORD, *requested.output_format.joined_files]
    if args.truth:
        names.append(METRICS)
    if requested.shows_image:
        names.append(LEGEND)
    if args.coco:
        names.append(COCO)
    return names


def _read_files(args: PredictSettings, jobs: Iterable[Job], inputs: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """The files that a call reads, each with its use."""
    for path in inputs:
        yield path, "an input"
    for job in jobs:
        for name in job.files:
            yield Path(name), "an input"
    for model in map(Path, [args.model, *args.ensemble]):
        paths = [model]
        if model.is_dir():
            paths = [model / name for name in MODEL_FILES]
        for path in paths:
            yield path, "a file of the model"
    if args.truth:
        has_predictions = args.file is None and is_recorded(args.output)
        own = args.output.resolve() if has_predictions else None
        for path in _files_at(args.truth):
            if own is None or own not in path.resolve().parents:
                yield path, "a file of --truth"


def _files_at(path: Path) -> Iterable[Path]:
    """The files below a folder, or the file itself."""
    if not path.is_dir():
        return [path]
    files: list[Path] = []
    for folder, _, names in walk(path):
        files += [Path(folder, name) for name in names]
    return files


def _id(path: Path) -> FileId | None:
    """What tells a file from all others by any of its names; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
