"""As `inspect`, for images too large to be decoded whole for every crop: their masks are looked at in bands."""

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from data_utils.analysis.inspect import Inspection, Problem, count_values, inspect, lossy, other_size, too_many
from data_utils.class_map import as_colour, key_of, pack
from data_utils.image_io.formats import ImageSource
from data_utils.image_io.reader import decode_mask
from data_utils.image_io.regions import Regions, bands, large_regions, regions_of
from data_utils.image_io.resize import same_proportions
from data_utils.sources.records import Record
from runtime.errors import DataError

LOCATIONS = 64  # pixels of each class that are remembered, for crops around them


def inspect_in_windows(record: Record, *, has_classes: bool = True) -> Inspection | Problem:
    """As `inspect`; of a large image's mask also some pixels of each value, (n, 2) as (row, column)."""
    name = record["name"]
    with large_regions(record["image"]) as image:
        if image is None or _is_in_memory(record["target"]):
            return inspect(record, has_classes=has_classes)
        try:
            with regions_of(record["target"]) as mask:
                if not same_proportions(image.size, mask.size):
                    return other_size(name, image.size, mask.size)
                first = np.asarray(image.read(0, 1))
                mode = f"{first.dtype} x {first[0, 0].size}"
                found = _look(mask, image.size, mode, name, has_classes=has_classes)
                jpeg = str(record["target"]).lower().endswith((".jpg", ".jpeg"))
                if has_classes and jpeg and isinstance(found, Inspection) and len(found.pixels) > 2:
                    return lossy(name, found.pixels)
                return found
        except DataError as error:
            return Problem("cannot be read in windows", f"{name}: {error}; store large masks as tiled TIFF")


def _look(mask: Regions, size: tuple[int, int], mode: str, name: str, *, has_classes: bool) -> Inspection | Problem:
    pixels: Counter = Counter()
    parts: dict[Any, list] = defaultdict(list)
    coloured = False
    for top, band in bands(mask):
        part, coloured, _ = decode_mask(band, name)
        counts, keys = count_values(part), pack(part).ravel()
        pixels.update(counts)
        problem = too_many(pixels, name) if has_classes else None
        if problem:
            return problem
        for value, count in counts.items():
            found = np.flatnonzero(keys == key_of(value))
            some = found[np.linspace(0, count - 1, min(count, LOCATIONS)).astype(int)]
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
    locations = {value: _thinned(part) for value, part in parts.items()}
    return Inspection(size, mask.size, mode, kind, dict(pixels), locations)


def _thinned(parts: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """At most `LOCATIONS` of the pixels found in bands, each band weighing as many as its pixels."""
    pixels = np.concatenate([some for _, some in parts])
    weights = np.concatenate([np.full(len(some), count / len(some)) for count, some in parts])
    rng = np.random.default_rng(0)  # the same on every start
    return rng.choice(pixels, min(len(pixels), LOCATIONS), replace=False, p=weights / weights.sum())


def _is_in_memory(source: ImageSource) -> bool:
    return isinstance(source, dict) and source.get("bytes") is not None
