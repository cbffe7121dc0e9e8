"""A record of the model that made the masks of an output folder, so that a folder never mixes masks of two models."""

import json
import zlib
from contextlib import suppress
from pathlib import Path

from inference.predict_settings import PredictSettings
from runtime.documents import open_regular, read_json
from runtime.errors import DataError
from runtime.files import replace_file
from runtime.redact import redact

RECORD = "predict.json"
MODEL_FILES = ("config.json", "model.safetensors")
CHUNK = 2**22  # bytes of a file that are read at once


def provenance_of(args: PredictSettings) -> dict:
    """Everything that masks depend on: the models, each with a checksum (none for a Hub id), and the settings.

    Tiles are left out, so that a call that ran out of memory can continue with smaller ones.
    """
    models = {redact(name): _checksum(Path(name)) for name in [args.model, *args.ensemble]}
    provenance = {"models": models, "scale": args.scale, "tta": args.tta, "complete": True}
    if args.min_size is not None:
        provenance["min_size"] = args.min_size
    if args.drop_border:
        provenance["drop_border"] = True
    return provenance


def record_provenance(output: Path, provenance: dict, overwrite: bool) -> None:
    """Write the provenance of the masks into their folder.

    Raises DataError if the folder has another one already, and if nothing can be written there.

    With `overwrite` the folder holds old and new masks for a while: the record is not `complete` until all new masks
    are written.
    """
    earlier_essence = _recorded_essence(output)
    if earlier_essence and not overwrite and earlier_essence != _essence(provenance):
        raise DataError(
            f"--output {output}: holds masks of another model or other settings (see {RECORD}), or of an --overwrite"
            " that did not finish; choose another folder, or give --overwrite"
        )
    try:
        _record(output, provenance | {"complete": not overwrite})
    except OSError as error:
        raise DataError(f"--output {output}: {RECORD} cannot be written ({error.strerror})") from error


def is_recorded(output: Path) -> bool:
    """Whether the files of a folder are those of earlier calls, which have recorded their provenance."""
    return _recorded_essence(output) is not None


def complete_provenance(output: Path) -> None:
    """Record that all masks of the folder have the provenance that `record_provenance` has written."""
    with suppress(FileNotFoundError, ValueError):  # the record was removed or damaged meanwhile
        _record(output, read_json(output / RECORD) | {"complete": True})


def _record(output: Path, provenance: dict) -> None:
    # FileNotFoundError: another run may write the record at the same moment
    with suppress(FileNotFoundError), replace_file(output / RECORD) as file:
        file.write((json.dumps(provenance, indent=2) + "\n").encode())


def _recorded_essence(output: Path) -> dict | None:
    """The essence of the record in a folder; None if there is no record, or not one of ours."""
    try:
        return _essence(read_json(output / RECORD))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _essence(provenance: dict) -> dict:
    """The provenance with checksums instead of the names of models, which may have been moved."""
    models = [checksum or name for name, checksum in provenance["models"].items()]
    return provenance | {"models": models}


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
