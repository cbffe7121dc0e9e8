"""Images too large to be decoded whole for every crop: looked at in bands, read in windows."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

from data_utils.crops import Size, Window, nearest
from data_utils.decoding import decode_mask
from runtime.errors import DataError
from data_utils.inspection import Inspection, Problem, count_values, inspect, lossy, other_size, too_many
from data_utils.masks import as_colour, key_of, pack, read_mask
from data_utils.pages import TIFF_SUFFIXES

LARGE = 2**24  # pixels
BAND = 2**22  # pixels that are looked at together
PLACES = 64  # of each class, around which crops are taken
SAMPLES, SIDE = 4, 512  # windows down and across that brightness is measured on, and their side
SUFFIXES = (".npy", *TIFF_SUFFIXES)


class Rows(Protocol):
    """Rows [start, stop) of a picture of `size` (H, W), or only columns [left, right) of them."""

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def in_windows(self) -> bool: ...

    def crop(self, start: int, stop: int, left: int = 0, right: int | None = None) -> Image.Image | np.ndarray: ...


OpenRows = Callable[[Path, int], AbstractContextManager[Rows]]


class Crops(NamedTuple):
    """What reads crops of large images.

    Args:
        open_rows: (path, page) -> a context of its `Rows`.
        target_size: (H, W) of an image -> (H, W) at the network.
        read: (rows, window, name) -> the ((top, bottom), (left, right)) of the image at the network, (C, h, w).
    """

    open_rows: OpenRows
    target_size: Callable[[int, int], tuple[int, int]]
    read: Callable[[Rows, tuple, str], np.ndarray]


def rows_of(source: Any, open_rows: OpenRows) -> AbstractContextManager[Rows]:
    """The rows of a path or of a page of it."""
    path, page = (source["path"], source.get("page", 0)) if isinstance(source, dict) else (source, 0)
    return open_rows(Path(path), page)


def _bytes_of(source: Any) -> bytes | None:
    return source.get("bytes") if isinstance(source, dict) else None


@contextmanager
def large_rows(source: Any, open_rows: OpenRows) -> Iterator[Rows | None]:
    """The rows of a large image that has windows; None for any other, which is decoded whole."""
    path = source.get("path") if isinstance(source, dict) and _bytes_of(source) is None else source
    with ExitStack() as stack:
        rows = None
        if isinstance(path, str) and path.lower().endswith(SUFFIXES):
            with suppress(ValueError):  # will be named when it is decoded
                rows = stack.enter_context(rows_of(source, open_rows))
        yield rows if rows and rows.in_windows and np.prod(rows.size) >= LARGE else None


def bands(rows: Rows) -> Iterator[tuple[int, Image.Image | np.ndarray]]:
    """(first row, rows) of all rows, some at a time."""
    height, width = rows.size
    step = max(1, BAND // width)
    yield from ((top, rows.crop(top, min(top + step, height))) for top in range(0, height, step))


def inspect_in_windows(record: dict, open_rows: OpenRows) -> Inspection | Problem:
    """As `inspect`; of a large image's mask also some places of each value, (n, 2) as (row, column)."""
    name = record["name"]
    with large_rows(record["image"], open_rows) as image:
        if image is None or _bytes_of(record["mask"]) is not None:
            return inspect(record)
        try:
            with rows_of(record["mask"], open_rows) as mask:
                if mask.size != image.size:
                    return other_size(name, image.size, mask.size)
                first = np.asarray(image.crop(0, 1))
                found = _look(mask, f"{first.dtype} x {first[0, 0].size}", name)
                jpeg = str(record["mask"]).lower().endswith((".jpg", ".jpeg"))
                if jpeg and isinstance(found, Inspection) and len(found.pixels) > 2:
                    return lossy(name, found.pixels)
                return found
        except ValueError as error:
            return Problem("cannot be read in windows", f"{name}: {error}; large masks are best stored as tiled TIFF")


def _look(mask: Rows, mode: str, name: str) -> Inspection | Problem:
    pixels: Counter = Counter()
    parts: dict[Any, list] = defaultdict(list)
    coloured = False
    for top, band in bands(mask):
        part, coloured, _ = decode_mask(band, name)
        counts, keys = count_values(part), pack(part).ravel()
        pixels.update(counts)
        problem = too_many(pixels, name)
        if problem:
            return problem
        for value, count in counts.items():
            found = np.flatnonzero(keys == key_of(value))
            some = found[np.linspace(0, count - 1, min(count, PLACES)).astype(int)]
            row, column = divmod(some, part.shape[1])
            parts[value].append((count, np.stack([top + row, column], axis=1)))
    if any(isinstance(value, tuple) for value in pixels):  # bands of grey only are colours too
        pixels, greys = Counter(), pixels
        for value, count in greys.items():
            pixels[as_colour(value)] += count
        for value in [value for value in parts if isinstance(value, int)]:
            parts[as_colour(value)] += parts.pop(value)
        kind = "colours"
    else:
        kind = "greys" if coloured else "numbers"
    return Inspection(mask.size, mode, kind, dict(pixels), {value: _thinned(part) for value, part in parts.items()})


def _thinned(parts: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """At most `PLACES` of the places found in bands, each band weighing as many as its pixels."""
    places = np.concatenate([some for _, some in parts])
    weights = np.concatenate([np.full(len(some), count / len(some)) for count, some in parts])
    rng = np.random.default_rng(0)  # the same on every start
    return rng.choice(places, min(len(places), PLACES), replace=False, p=weights / weights.sum())


def read_sample(source: object, name: str, read: Callable[..., np.ndarray], open_rows: OpenRows) -> np.ndarray:
    """An image as `read(source, name)` gives it, (H, W, C); of a large one only some windows, one below the other."""
    with large_rows(source, open_rows) as rows:
        if rows is None:
            return read(source, name)
        tops, lefts = (np.linspace(0, max(side - SIDE, 0), SAMPLES).astype(int).tolist() for side in rows.size)
        width = min(SIDE, rows.size[1])
        parts = [
            read(rows.crop(top, min(top + SIDE, rows.size[0]), at, at + width), name) for top in tops for at in lefts
        ]
        return np.concatenate(parts)


def read_through(source: object, name: str, read: Callable[..., np.ndarray], open_rows: OpenRows) -> int:
    """Decode all of an image, a large one in bands; how many channels it has."""
    with large_rows(source, open_rows) as rows:
        if rows is None:
            return read(source, name).shape[2]
        return max(read(band, name).shape[2] for _, band in bands(rows))


def read_window(record: dict, crops: Crops, choose: Callable[[Size, Size], Window]) -> tuple[np.ndarray, np.ndarray]:
    """A crop of a large image at the network's size, (C, h, w), and the values of its mask, (h, w) or (h, w, 3).

    `choose(size of the image, size at the network)` gives the window. Raises DataError where their sizes differ.
    """
    name = record["name"]
    with rows_of(record["image"], crops.open_rows) as image, rows_of(record["mask"], crops.open_rows) as mask:
        if mask.size != image.size:  # changed since they were looked at
            raise DataError(other_size(name, image.size, mask.size).text)
        size = crops.target_size(*image.size)
        window = choose(image.size, size)
        pixels = crops.read(image, window, name)
        rows, columns = (nearest(w, h)[slice(*part)] for w, h, part in zip(size, mask.size, window, strict=True))
        values = read_mask(mask.crop(rows[0], rows[-1] + 1, columns[0], columns[-1] + 1), name)
    return pixels, values[rows - rows[0]][:, columns - columns[0]]
