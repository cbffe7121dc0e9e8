"""The mask of one COCO image: objects as polygons or run lengths (RLE), both drawn by COCO's own code."""

import json
import os
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from data_utils.image_io.reader import read_header
from data_utils.sources.annotations.drawn import (
    Area,
    DrawnMask,
    drawn_size,
    read_points,
)
from runtime.errors import DataError

LONGEST_RUN = 60  # bits of a run's length

Entry = dict[str, Any]
RunLengths = dict[str, Any]  # RLE as pycocotools has it


@dataclass(frozen=True)
class CocoMask(DrawnMask):
    """The objects of one image: crowds first, so that objects marked one by one stay; then objects, the smallest last.

    Args:
        files: all files that list objects of the image.
        entry: JSON of the size in the files, 0 if they have none, and of the objects, with their mask values.
    """

    files: tuple[str, ...]
    entry: bytes

    def read(self) -> tuple[tuple[int, int], list[Area]]:
        content = json.loads(self.entry)
        name = os.path.basename(self.image)
        picture_size, _ = read_header(self.image, self.image)
        size = drawn_size(tuple(content["size"]), picture_size, f"{self.file}: {name}")
        ranked: list[tuple[int, Area]] = []
        for entry in content["objects"]:
            location = f"{self.files[entry['file']]}: annotation {entry['id']} of {name}"
            runs = encode(entry.get("segmentation"), *size, location)
            if entry["value"] is None:
                raise DataError(f"{location} is of category {entry['category_id']!r}, which the file does not list")
            is_crowd = bool(entry.get("iscrowd"))
            rank = int(rle_code().area(runs))
            if is_crowd:  # below all objects
                rank += size[0] * size[1]
            ranked.append((rank, Area(entry["value"], partial(fill_runs, runs), is_crowd=is_crowd)))
        ranked.sort(key=itemgetter(0), reverse=True)
        return size, [area for _, area in ranked]


def rle_code() -> ModuleType:
    """The code of pycocotools for run lengths; prediction only needs it to read or write COCO."""
    from pycocotools import mask

    return mask


def fill_runs(runs: RunLengths, picture: Image.Image, value: int) -> None:
    """Draw a value where run lengths say; only the columns that they reach are made."""
    left, top, width, height = map(int, rle_code().toBbox(runs))
    if not width:  # a polygon outside of the picture
        return
    first = left * picture.height
    counts = run_lengths(runs["counts"].decode())
    ends = np.cumsum(counts).clip(first, first + width * picture.height)
    is_inside = np.arange(len(counts), dtype=np.uint8) % 2  # the first run is outside
    columns = np.repeat(255 * is_inside, np.diff(ends, prepend=first)).reshape(width, picture.height)
    picture.paste(value, (left, top), Image.fromarray(np.ascontiguousarray(columns.T[top : top + height])))


def encode(segmentation: Any, height: int, width: int, location: str) -> RunLengths:
    """Compressed RLE of an object given as polygons or as RLE. Raises DataError, with `location`."""
    if not segmentation:
        raise DataError(
            f"{location} has a box but no segmentation: it is for detection, or was exported without polygons"
        )
    if isinstance(segmentation, list):
        return _encode_polygons(segmentation, height, width, location)
    counts: Any = 0
    size: Any = 0
    if isinstance(segmentation, dict):
        counts = segmentation.get("counts")
        size = segmentation.get("size")
    if size != [height, width] or not isinstance(counts, list | str):
        raise DataError(
            f"{location} is no RLE of {height} x {width} (height x width): size {size}, counts {type(counts).__name__}"
        )
    try:
        runs = run_lengths(counts) if isinstance(counts, str) else counts
    except ValueError as error:
        raise DataError(f"{location} {error}") from error
    # pycocotools leaves pixels that no run reaches uninitialized
    if not all(isinstance(run, int) and run >= 0 for run in runs) or sum(runs) != height * width:
        raise DataError(f"{location} has run lengths that do not add up to {height} x {width} pixels")
    return rle_code().frPyObjects({"size": size, "counts": runs}, height, width)


def _encode_polygons(segmentation: list, height: int, width: int, location: str) -> RunLengths:
    polygons = [read_points(polygon, f"{location}: polygon {i}") for i, polygon in enumerate(segmentation, 1)]
    return rle_code().merge(rle_code().frPyObjects([points.ravel().tolist() for points in polygons], height, width))


def run_lengths(text: str) -> list[int]:
    """Run lengths of a compressed RLE: groups of 5 bits, lowest first; each run less the one two before.

    Each character is 48 more than 5 bits and, as bit 5, whether others follow; bit 4 of the last one is the sign.
    Raises ValueError for other characters, and for a number that no picture is large enough for.
    """
    runs: list[int] = []
    number = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > LONGEST_RUN:
            raise ValueError(f"has run lengths that do not add up: {character!r} is no part of one here")
        number |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            number -= (bits & 16) << shift - 4
            if len(runs) > 2:
                number += runs[-2]
            runs.append(number)
            number = shift = 0
    return runs
