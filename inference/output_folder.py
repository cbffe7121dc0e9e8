"""The folder of outputs: the record of the model that made its masks, and which files a call may write there.

A folder never mixes masks of two models, and no file that is written is an input, a true mask or a model.
"""

import json
import math
import os
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from data_utils.sources.folder import walk
from inference.predict_settings import PredictSettings
from inference.requested_outputs import RequestedOutputs
from runtime.documents import open_regular, read_json
from runtime.errors import DataError
from runtime.files import replace_file
from runtime.redact import redact
from tasks.job import LEGEND, Job
from tasks.objects.write import COCO

RECORD = "predict.json"
SETTINGS = ("scale", "tta", "min_size", "drop_border")  # its entries beside the models
SINCE = "since"  # its entry: older files are not of these models, in seconds since 1970
METRICS = "metrics.json"
MODEL_FILES = ("config.json", "model.safetensors")
CHUNK = 2**22  # bytes of a file that are read at once
FileId = tuple[int, int]  # the device and number of a file, which all of its names share


def provenance_of(args: PredictSettings) -> dict:
    """Everything that masks depend on: the models, each with a checksum (none for a Hub id), and the settings.

    Tiles are left out, so that a call that ran out of memory can continue with smaller ones.
    """
    models = {redact(name): _checksum(Path(name)) for name in [args.model, *args.ensemble]}
    provenance = {"models": models, "scale": args.scale, "tta": args.tta}
    if args.min_size is not None:
        provenance["min_size"] = args.min_size
    if args.drop_border:
        provenance["drop_border"] = True
    return provenance


def record_provenance(output: Path, provenance: dict, overwrite: bool) -> None:
    """Write the provenance of the masks into their folder, and since when it holds.

    With `overwrite` another one holds from now on: files that are there are of it when they are written again. So does
    that of a model on the Hub, which may have changed. Raises DataError if the folder has another provenance and is not
    to be overwritten, and if nothing can be written there.
    """
    earlier = _read_record(output)
    is_same = earlier is not None and _essence(earlier) == _essence(provenance)
    if earlier and not overwrite and not is_same:
        raise DataError(
            f"--output {output}: holds masks of another model or other settings (see {RECORD}); choose another folder,"
            " or give --overwrite"
        )
    try:
        with TemporaryFile(dir=output) as probe:
            now = os.stat(probe.fileno()).st_mtime  # by the clock of the disk, as the times of masks
        holds_on = not overwrite or (is_same and all(provenance["models"].values()))
        record = provenance | {SINCE: min(now, recorded_since(output)) if holds_on else now}
        # FileNotFoundError: another run may write the record at the same moment
        with suppress(FileNotFoundError), replace_file(output / RECORD) as file:
            file.write((json.dumps(record, indent=2) + "\n").encode())
    except OSError as error:
        raise DataError(f"--output {output}: {RECORD} cannot be written ({error.strerror})") from error


def is_recorded(output: Path) -> bool:
    """Whether the files of a folder are those of earlier calls, which have recorded their provenance."""
    return _read_record(output) is not None


def recorded_since(output: Path) -> float:
    """The time since which files in a folder have the recorded provenance; 0 if all have it, infinite if none has."""
    return (_read_record(output) or {}).get(SINCE, 0.0)


def _read_record(output: Path) -> dict | None:
    """The record in a folder; None if there is none, or not one of ours."""
    try:
        record = read_json(output / RECORD)
        _essence(record)
        is_whole = record.get("complete", True)  # false in earlier versions: an --overwrite that did not finish
        record[SINCE] = float(record.get(SINCE, 0)) if is_whole else math.inf
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return record


def _essence(provenance: dict) -> dict:
    """The settings, and the checksums of models instead of their names, since they may have been moved."""
    models = [checksum or name for name, checksum in provenance["models"].items()]
    return {name: provenance.get(name) for name in SETTINGS} | {"models": models}


def _checksum(model: Path) -> str | None:
    """The checksum of the files of a model, in hexadecimal digits; None for a Hub id."""
    if model.is_dir():
        files = [model / name for name in MODEL_FILES]
    elif model.is_file():
        files = [model]
    else:
        return None
    checksum = 0
    for path in files:
        with open_regular(path) as file:
            while chunk := file.read(CHUNK):
                checksum = zlib.crc32(chunk, checksum)
    return f"{checksum:08x}"


def check_written(
    args: PredictSettings, jobs: Sequence[Job], finished_jobs: Collection[Job], requested: RequestedOutputs
) -> None:
    """Raises DataError if a file that will be written is no file, is written twice, or is one that is read.

    So it does for one that is there and that no call of predict.py has recorded, unless it may be overwritten.
    """
    place = args.file or args.output
    if args.file is None and args.truth and _id(args.truth) == _id(args.output):
        raise DataError(f"--output {place}: --truth {args.truth} would be overwritten; choose another folder")
    read = _read_files(args, jobs)
    may_replace = args.overwrite or (args.file is None and is_recorded(args.output))
    for path, job in _written_files(args, jobs, requested).items():
        if not path.exists():
            continue
        if not path.is_file():
            raise DataError(f"--output {place}: {path} is there, and is no file; remove it, or choose another")
        if _id(path) in read:
            raise DataError(f"--output {place}: {path} is read by this call, not to be overwritten; choose another")
        if job is not None and job not in finished_jobs and not may_replace:
            raise DataError(f"--output {place}: {path} is there already; --overwrite replaces it")


def _written_files(
    args: PredictSettings, jobs: Sequence[Job], requested: RequestedOutputs
) -> Mapping[Path, Job | None]:
    """All files that a call will write, each with its job if it is of one. Raises DataError for two of one path."""
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
