"""What `inspect` does, for images with points: their headers are read, and their points are known."""

import numpy as np

from data_utils.analysis.inspect import ClassLocations, Inspection, Problem
from data_utils.image_io.formats import PointSource
from data_utils.image_io.reader import read_header
from data_utils.image_io.regions import large_regions
from data_utils.sources.records import Record
from runtime.errors import DataError
from tasks.points import PRESENT


def inspect_points(record: Record, *, windows: bool = False) -> Inspection | Problem:
    """What the header of an image says; of one that is read in windows also where its points are, for crops."""
    name = record["name"]
    source = record["target"]
    assert isinstance(source, PointSource)
    try:
        size, mode = read_header(record["image"], f"{name}: image")
    except DataError as error:
        return Problem("image cannot be read", str(error))
    locations: ClassLocations | None = None
    if windows:
        with large_regions(record["image"]) as regions:
            if regions is not None:
                locations = point_locations(source, size)
    return Inspection(size, size, mode, "numbers", {}, locations)


def point_locations(source: PointSource, size: tuple[int, ...]) -> ClassLocations:
    """The pixel (1, n) of each present point, in an image of `size`."""
    locations: ClassLocations = {}
    for number, (position, state) in enumerate(zip(source.positions, source.states, strict=True)):
        if state == PRESENT:
            pixel = position[::-1].round().astype(np.int64)
            locations[number] = pixel.clip(0, np.array(size) - 1)[None]
    return locations
