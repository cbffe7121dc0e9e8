"""The inspection of images and volumes with points, whose records already hold the points."""

import numpy as np

from data_utils.analysis.inspect_images import inspect_header
from data_utils.analysis.inspect_volumes import FOREGROUND, generator
from data_utils.analysis.inspection import ClassLocations, Inspection, problem_of_kind
from data_utils.image_io.formats import PointSource
from data_utils.image_io.volumes import read_volume
from data_utils.image_io.windowed import open_if_large
from data_utils.point_states import PRESENT
from data_utils.sources.points.spaces import to_pixels, to_voxels
from data_utils.sources.records import Record


def inspect_points(record: Record, *, windows: bool = False) -> Inspection:
    """The inspection of the header of an image; with `windows`, a large image also gets the pixels of its points."""
    name = record["name"]
    source = record["target"]
    assert isinstance(source, PointSource)
    with problem_of_kind("image cannot be read"):
        size, mode = inspect_header(record)
    with problem_of_kind("points of an image of another shape"):
        pixels = to_pixels(source, size, name)
    locations: ClassLocations | None = None
    if windows:
        with open_if_large(record["image"]) as picture:
            if picture is not None:
                locations = point_locations(pixels, source, size)
    return Inspection(size, size, mode, "numbers", {}, locations)


def inspect_volume_points(record: Record) -> Inspection:
    """The inspection of a volume, with the voxels of its points; intensities are sampled from the whole volume."""
    name = record["name"]
    source = record["target"]
    assert isinstance(source, PointSource)
    with problem_of_kind("image cannot be read"):
        voxels, header = read_volume(record["image"], name)
    rng = generator(name, header.size)
    z, y, x = (rng.integers(side, size=FOREGROUND) for side in header.size)
    return Inspection(
        header.size,
        header.size,
        header.dtype,
        "numbers",
        {},
        point_locations(to_voxels(source.positions, source.space, header), source, header.size),
        voxels.shape[-1],
        header.spacing,
        voxels[z, y, x].astype(np.float32),
    )


def point_locations(pixels: np.ndarray, source: PointSource, size: tuple[int, ...]) -> ClassLocations:
    """Number of each present point, from 1 -> its pixel (1, n), given all `pixels` (K, n) in an image of `size`."""
    locations: ClassLocations = {}
    for number, (position, state) in enumerate(zip(pixels, source.states, strict=True), 1):
        if state == PRESENT:
            locations[number] = position.round().astype(np.int64).clip(0, np.array(size) - 1)[None]
    return locations
