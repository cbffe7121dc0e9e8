"""The mask of one COCO image: objects as polygons or run lengths (RLE), rendered by pycocotools, COCO's own code."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from data_utils.image_io.class_masks import LayeredMask
from data_utils.image_io.reader import read_header
from data_utils.mask_values import number_type
from data_utils.sources.annotations.polygons import check_rendered_size, clip_polygon, read_points
from runtime.errors import DataError
from tasks.overlapping import pack_bits
from unet.config import IGNORE_INDEX, MaskValue

LONGEST_RUN = 60  # bits of a run's length

FILE_KEY = "file"  # where an entry keeps its file, if the data set has several for one split
Entry = dict[str, Any]


class Layer(NamedTuple):
    """An object of a mask: the key that orders layers, its mask value, and its pixels as RLE."""

    rank: tuple[int, int]
    value: int
    runs: Entry


def rle_code() -> ModuleType:
    """The code of pycocotools for run lengths; prediction only needs it to read or write COCO."""
    from pycocotools import mask

    return mask


@dataclass(frozen=True)
class CocoMask(LayeredMask):
    """The objects of one image.

    Args:
        objects: JSON list of the file's entries, with the keys that rendering needs.
        size: (H, W) from the file, (0, 0) if the file has no size.
        values: category id -> mask value.
    """

    file: str
    image: str
    size: tuple[int, int]
    objects: bytes
    values: dict[int, int]

    def render(self) -> np.ndarray:
        """The mask: crowds first, as 255, so that objects marked one by one stay; then objects, smaller ones on top."""
        size = self._size()
        mask = np.zeros(size, number_type(self.values.values()), order="F")  # pycocotools stores masks in this order
        # neighbors of one class are decoded as one
        for value, group in groupby(self._layers(size), key=attrgetter("value")):
            merged = rle_code().merge([layer.runs for layer in group])
            mask[rle_code().decode(merged).astype(bool)] = value
        return np.ascontiguousarray(mask)

    def render_objects(self) -> tuple[np.ndarray, np.ndarray]:
        size = self._size()
        numbers = np.zeros(size, np.int32, order="F")
        values = [0]
        for number, layer in enumerate(self._layers(size), 1):
            numbers[rle_code().decode(layer.runs).astype(bool)] = number
            values.append(layer.value)
        return np.ascontiguousarray(numbers), np.array(values)

    def render_classes(self, bit_by_value: Mapping[MaskValue, int]) -> np.ndarray:
        size = self._size()
        objects: dict[int, list[Entry]] = defaultdict(list)
        crowds: dict[int, list[Entry]] = defaultdict(list)
        for entry, value, runs in self._objects(size):
            if value in bit_by_value:
                runs_by_bit = crowds if entry.get("iscrowd") else objects
                runs_by_bit[bit_by_value[value]].append(runs)
        truth = _bits(objects, size)
        return pack_bits(truth, _bits(crowds, size) & ~truth)

    def _size(self) -> tuple[int, int]:
        """(H, W) of the mask: the size in the file, else the size of the image."""
        size, _ = read_header(self.image, self.image)
        if all(self.size):
            check_rendered_size(self.size, size, f"{self.file}: {os.path.basename(self.image)}")
            return self.size
        return size

    def _layers(self, size: tuple[int, int]) -> list[Layer]:
        """The objects as layers from the lowest to the highest: crowds, then objects, smaller ones last."""
        layers: list[Layer] = []
        for entry, value, runs in self._objects(size):
            if entry.get("iscrowd"):
                layers.append(Layer((0, 0), IGNORE_INDEX, runs))
            else:
                layers.append(Layer((1, -int(rle_code().area(runs))), value, runs))
        layers.sort(key=attrgetter("rank"))
        return layers

    def _objects(self, size: tuple[int, int]) -> Iterator[tuple[Entry, int, Entry]]:
        """Each object: the file's entry, its mask value, and its pixels as RLE."""
        for entry in json.loads(self.objects):
            location = f"{entry.get(FILE_KEY, self.file)}: annotation {entry['id']} of {os.path.basename(self.image)}"
            runs = encode(entry.get("segmentation"), *size, location)
            if entry["category_id"] not in self.values:
                raise DataError(f"{location} is of category {entry['category_id']!r}, which the file does not list")
            yield entry, self.values[entry["category_id"]], runs


def _bits(runs_by_bit: Mapping[int, list[Entry]], size: tuple[int, int]) -> np.ndarray:
    """(H, W) int64 in which the pixels of each bit's run lengths have that bit."""
    bits = np.zeros(size, np.int64)
    for bit, runs in runs_by_bit.items():
        bits |= rle_code().decode(rle_code().merge(runs)).astype(np.int64) << bit
    return bits


def encode(segmentation: Any, height: int, width: int, location: str) -> Entry:
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


def _encode_polygons(segmentation: list, height: int, width: int, location: str) -> Entry:
    polygons = [read_points(polygon, f"{location}: polygon {i}") for i, polygon in enumerate(segmentation, 1)]
    visible = [clip_polygon(points, (height, width)) for points in polygons]
    outlines = [points.ravel().tolist() for points in visible if len(points)]
    if not outlines:
        return rle_code().encode(np.zeros((height, width), np.uint8, order="F"))
    return rle_code().merge(rle_code().frPyObjects(outlines, height, width))


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
