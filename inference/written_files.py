"""The files that a call of prediction will write: none is an input, a true mask, an annotation or a model."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from data_utils.sources.folder import walk
from inference.predict_settings import PredictSettings
from inference.provenance import MODEL_FILES, RECORD, is_recorded
from inference.requested_outputs import RequestedOutputs
from runtime.errors import DataError
from tasks.job import LEGEND, Job
from tasks.objects.write import COCO

METRICS = "metrics.json"
FileId = tuple[int, int]  # the device and number of a file, which all of its names share


def check_written(args: PredictSettings, jobs: Sequence[Job], requested: RequestedOutputs) -> None:
    """Raises DataError if a file that will be written is no file, is written twice, or is one that is read."""
    place = args.file or args.output
    if args.file is None and args.truth and _id(args.truth) == _id(args.output):
        raise DataError(f"--output {place}: --truth {args.truth} would be overwritten; choose another folder")
    read = _read_files(args, jobs)
    for path in _written_files(args, jobs, requested):
        if not path.exists():
            continue
        if not path.is_file():
            raise DataError(f"--output {place}: {path} is there, and is no file; remove it, or choose another")
        if _id(path) in read:
            raise DataError(f"--output {place}: {path} is read by this call, not to be overwritten; choose another")


def check_unfinished(args: PredictSettings, unfinished: Iterable[Job], requested: RequestedOutputs) -> None:
    """Raises DataError if a file that no call of predict.py has recorded would be overwritten unasked."""
    if args.overwrite or (args.file is None and is_recorded(args.output)):
        return
    for job in unfinished:
        for path in requested.output_format.files(job, requested.extensions):
            if path.exists():
                place = args.file or args.output
                raise DataError(f"--output {place}: {path} is there already; --overwrite replaces it")


def _written_files(args: PredictSettings, jobs: Sequence[Job], requested: RequestedOutputs) -> Iterable[Path]:
    """All files that a call will write. Raises DataError if two of them have one path."""
    names: list[str] = []
    if args.file is None:
        names += [RECORD, *requested.output_format.joined_files]
    if args.truth:
        names.append(METRICS)
    if args.overlay:
        names.append(LEGEND)
    if args.coco:
        names.append(COCO)
    writers: dict[Path, Job | None] = {args.output / name: None for name in names}
    for job in jobs:
        for path in requested.output_format.files(job, requested.extensions):
            other = writers.setdefault(path, job)
            if other is None:
                raise DataError(f"--input: {job.name} would write {path}, which is of all inputs; rename it")
            if other is not job:
                inputs = f"{other.name} and {job.name}"
                remedy = "give one of them, or the folder that holds the folders of both"
                raise DataError(f"--input: {inputs} would both write {path}; {remedy}")
    return writers


def _read_files(args: PredictSettings, jobs: Iterable[Job]) -> set[FileId]:
    """The files that a call reads, each as `_id`."""
    files = [Path(name) for job in jobs for name in job.files]
    for model in map(Path, [args.model, *args.ensemble]):
        files += [model, *(model / name for name in MODEL_FILES)]
    if args.truth:
        truths = [Path(folder, name) for folder, _, names in walk(args.truth) for name in names]
        if args.file is None and is_recorded(args.output):  # by an earlier call
            own = args.output.resolve()
            truths = [path for path in truths if own not in path.resolve().parents]
        files += truths or [args.truth]
    return {file_id for file_id in map(_id, files) if file_id is not None}


def _id(path: Path) -> FileId | None:
    """What tells a file from all others by any of its names; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def make_folder(output: Path) -> None:
    """Make the output folder. Raises DataError if it takes no files."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=output).close()
    except OSError as error:
        raise DataError(f"--output {output}: cannot be written ({error.strerror}); choose another folder") from error
