"""A cache on disk for measurements of data sets, keyed by the names, sizes and times of their files."""

import hashlib
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from runtime.documents import MOST_BYTES_OF_DATA, read_bytes
from runtime.files import replace_file
from runtime.parallel import map_indices

FORMAT = 3  # stands in all keys and in the fingerprints of data sets
READING = 8  # how files are read; changing the number makes all stored values unused


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/unet-accelerate, by default in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unet-accelerate"


def cache_file(key: str, ending: str) -> Path:
    """The file of the cache that holds the value of a key."""
    return cache_folder() / f"{key}-{READING}{ending}"


def digest(*parts: object) -> str:
    """A key computed from bytes and from other values; different values must have different `repr`."""
    checksum = hashlib.sha256()
    for part in (FORMAT, *parts):
        content = part if isinstance(part, (bytes, bytearray, memoryview)) else repr(part).encode()
        checksum.update(b"%d:" % memoryview(content).nbytes)
        checksum.update(content)
    return checksum.hexdigest()[:32]


def size_and_time(path: str | Path) -> tuple[int, int]:
    """The bytes of a file, and when it changed last in nanoseconds; -1 and -1 if it is not there."""
    try:
        stat = os.stat(path)
    except OSError:  # the error is reported when the file is read
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def load_or_compute(key: str | None, compute: Callable[[], Any]) -> Any:
    """`compute()`, or the stored result of an earlier call with this key; with the key None nothing is stored.

    It is what `store_value` takes. If the cache is damaged, or cannot be read or written, it is computed again.
    """
    try:
        return load_value(key)
    except (OSError, ValueError):  # the file is not there, or damaged
        value = compute()
    store_value(key, value)
    return value


def load_or_read_each(kind: str, files: Sequence[str], read: Callable[[str], Any]) -> dict[str, Any]:
    """File -> `read(file)`, computed in threads, or what an earlier call of this kind stored, until a file changes.

    Args:
        kind: what is read of the files; another word makes stored values unused.
    """
    key = digest(kind, *files, *map(size_and_time, files))
    values = load_or_compute(key, lambda: list(map_indices(lambda index: read(files[index]), len(files))))
    return dict(zip(files, values, strict=True))


def load_value(key: str | None) -> Any:
    """The value that is stored under a key. Raises OSError if there is none, ValueError if it is damaged."""
    if key is None:
        raise FileNotFoundError("no value is stored without a key")
    checksum, _, content = read_bytes(cache_file(key, ".json"), MOST_BYTES_OF_DATA).partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != checksum:
        raise ValueError("its checksum differs")
    return json.loads(content, object_hook=_decode)


def store_value(key: str | None, value: Any) -> None:
    """Store a value under a key, below a line with its checksum, unless the key is None or the disk raises errors.

    It may be all that JSON holds, an array, or tuples, lists and dictionaries of such values; their keys, too.
    """
    if key is None:
        return
    content = json.dumps(_encode(value)).encode()
    file = cache_file(key, ".json")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(file) as stream:  # another run may be reading
            stream.write(hashlib.sha256(content).hexdigest().encode() + b"\n")
            stream.write(content)


def _encode(value: Any) -> Any:
    """For JSON, a dictionary as its items, a tuple as a list that is named so, and an array as its bytes."""
    if isinstance(value, dict):
        return {"items": [[_encode(key), _encode(each)] for key, each in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": list(map(_encode, value))}
    if isinstance(value, list):
        return list(map(_encode, value))
    if not isinstance(value, np.ndarray):
        return value
    stored = value
    if value.dtype.kind in "iu" and value.min(initial=0) == 0:  # the smallest type: there may be ten million numbers
        stored = value.astype(np.min_scalar_type(value.max(initial=0)))
    content = b64encode(stored.tobytes()).decode()
    return {"array": content, "dtypes": [stored.dtype.str, value.dtype.str], "shape": value.shape}


def _decode(value: dict[str, Any]) -> Any:
    """What `_encode` has made an object of JSON of."""
    if "items" in value:
        return dict(value["items"])
    if "tuple" in value:
        return tuple(value["tuple"])
    stored, dtype = value["dtypes"]
    return np.frombuffer(b64decode(value["array"]), stored).reshape(value["shape"]).astype(dtype)
