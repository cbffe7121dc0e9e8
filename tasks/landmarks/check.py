"""Likely mistakes in points, a line each, and how many images have each point."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from data_utils.analysis.findings import Check, Findings
from data_utils.image_io.formats import PointSource
from data_utils.image_io.volumes import read_volume_header
from data_utils.point_states import PRESENT
from data_utils.sources.points.spaces import PIXELS, PIXELS_UPWARD, to_pixels, to_voxels
from data_utils.sources.points.table import count_states
from data_utils.sources.records import Record, Records
from runtime.console import counted, listing

SAME_POINT_DISTANCE = 0.5  # pixels: two points of an image that are nearer lie at one place
# if sides mean anything, the left point lies on the same side of the right one in at least this share of images
USUAL_SIDE_SHARE = 0.9
NAMES_IN_MESSAGE = 5


class Points(NamedTuple):
    """The points of N images.

    Args:
        names: the names of the images.
        sources: the points as their files have them.
        positions: (N, K, n), (x, y) or (x, y, z): in pixels of each image, if the unit of its file is pixels.
        is_present: (N, K).
        is_inside: (N, K), whether a point lies on a pixel of its image, or nobody knows.
    """

    names: list[str]
    sources: list[PointSource]
    positions: np.ndarray
    is_present: np.ndarray
    is_inside: np.ndarray


def describe_points(splits: Sequence[Records]) -> list[str]:
    """A line for each point: in how many images it is present, absent or unknown."""
    states = [_source(record).states for records in splits for record in records]
    counts = count_states(np.stack(states))
    lines = ["landmarks: images in which each is present, absent, unknown"]
    for number, name in enumerate(_names(splits)):
        cells = " ".join(f"{values[number]:>8}" for values in counts.values())
        lines.append(f"  {cells}  {name}")
    return lines


def misplaced_points(findings: Findings) -> Iterator[str]:
    """Points outside their images, at one place, or likely exchanged with their partner in the mirror."""
    names = _names(findings.records)
    points = _all_points(findings)
    outside = []
    for image, number in np.argwhere(points.is_present & ~points.is_inside).tolist():
        place = ", ".join(f"{side:g}" for side in points.sources[image].positions[number])
        outside.append(f"{points.names[image]} ({names[number]} at {place})")
    if outside:
        count = counted(len(outside), "point lies outside its image", "points lie outside their images")
        yield f"{count}, and left out: {listing(outside, NAMES_IN_MESSAGE)}"
    doubles = []
    for first, second in combinations(range(len(names)), 2):
        distance = np.linalg.norm(points.positions[:, first] - points.positions[:, second], axis=1)
        is_double = points.is_present[:, first] & points.is_present[:, second] & (distance < SAME_POINT_DISTANCE)
        for image in np.flatnonzero(is_double).tolist():
            doubles.append(f"{points.names[image]} ({names[first]} and {names[second]})")
    if doubles:
        pairs = counted(len(doubles), "pair of points lies", "pairs of points lie")
        yield f"{pairs} at one place: {listing(doubles, NAMES_IN_MESSAGE)}"
    reader: Any = findings.reader  # a PointReader, whose module imports this one
    for first, second in reader.sided_pairs:
        exchanged = [points.names[image] for image in _exchanged_images(points, first, second)]
        if exchanged:
            where = f"{counted(len(exchanged), 'image')}: {listing(exchanged, NAMES_IN_MESSAGE)}"
            yield f"{names[first]} and {names[second]} may be exchanged in {where}"


def sides(findings: Findings) -> Iterator[str]:
    """The points that change places in the mirror, or why images are not mirrored."""
    reader: Any = findings.reader
    if reader.sides_line:
        yield reader.sides_line


def empty_cells(findings: Findings) -> Iterator[str]:
    """Cells of tables that do not say whether a point is there."""
    # the two parts of one split share their points
    landmarks = {id(records.metadata.landmarks): records.metadata.landmarks for records in findings.records}
    empty = sum(points.empty for points in landmarks.values() if points is not None)
    if empty:
        yield (
            f"{empty} empty cells are points of which nothing is known; if these are not in the image, give"
            " --absent not-there"
        )


def _names(splits: Sequence[Records]) -> tuple[str, ...]:
    landmarks = splits[0].metadata.landmarks
    assert landmarks is not None
    return landmarks.names


def _all_points(findings: Findings) -> Points:
    names = []
    sources = []
    positions = []
    is_inside = []
    for split in findings.splits:
        for size, record in zip(split.sizes, split.records, strict=True):
            source = _source(record)
            image_positions = _positions(source, record, tuple(size.tolist()))
            is_on_pixel = (image_positions >= -0.5) & (image_positions <= size[::-1] - 0.5)
            has_pixels = size.any() and source.space in (PIXELS, PIXELS_UPWARD)
            names.append(record["name"])
            sources.append(source)
            positions.append(image_positions)
            is_inside.append(is_on_pixel.all(axis=1) | (not has_pixels))
    is_present = np.stack([source.states == PRESENT for source in sources])
    return Points(names, sources, np.stack(positions), is_present, np.stack(is_inside))


def _source(record: Record) -> PointSource:
    source = record["target"]
    assert isinstance(source, PointSource)
    return source


def _positions(source: PointSource, record: Record, size: tuple[int, ...]) -> np.ndarray:
    """(K, n), (x, y) or (x, y, z): in pixels of an image of `size` (*spatial), if the file's unit is pixels.

    In the file's unit if it is another, or if the size is unknown: zeros where the image cannot be used.
    """
    if not any(size):
        return source.positions
    if len(size) == 2:
        height, width = size
        return to_pixels(source, (height, width), record["name"])[:, ::-1]
    if source.space != PIXELS:
        return source.positions
    header = read_volume_header(record["image"], record["name"])
    return to_voxels(source.positions, source.space, header)[:, ::-1]


def _exchanged_images(points: Points, first: int, second: int) -> list[int]:
    """The images in which the order of a pair of points is reversed, compared with nearly all images.

    The sign of the order is the order along x or, for bodies turned in any direction, the side of the line through the
    pair on which another point lies. The sign that agrees in the largest share of images is used; if that share is too
    small, no image is returned.
    """
    positions = points.positions
    is_present = points.is_present
    numbers = np.flatnonzero(is_present[:, first] & is_present[:, second])
    if not len(numbers):
        return []
    start = positions[numbers, first]
    direction = positions[numbers, second] - start
    signs = [(numbers, direction[:, 0] > 0)]
    is_plane = positions.shape[2] == 2
    for other in range(positions.shape[1]):
        is_known = is_present[numbers, other]
        if is_plane and other not in (first, second) and 2 * is_known.sum() >= len(numbers):
            offset = positions[numbers, other] - start
            is_left = direction[:, 0] * offset[:, 1] > direction[:, 1] * offset[:, 0]
            signs.append((numbers[is_known], is_left[is_known]))
    sign_numbers, sign = max(signs, key=lambda numbers_and_sign: _agreement(numbers_and_sign[1]))
    if _agreement(sign) < USUAL_SIDE_SHARE:
        return []
    return sign_numbers[sign != (sign.mean() > 0.5)].tolist()


def _agreement(sign: np.ndarray) -> float:
    """The share of images with the more frequent sign."""
    return max(sign.mean(), 1 - sign.mean())


CHECKS: tuple[Check, ...] = (sides, empty_cells, misplaced_points)
