"""Likely mistakes in points, a line each, and how many images have each point."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from data_utils.analysis.findings import Check, Findings
from data_utils.image_io.volumes import read_volume_header
from data_utils.point_states import OUTSIDE, PRESENT
from data_utils.sources.points.table import count_states
from data_utils.sources.records import Records
from runtime.console import counted, listing

SAME_POINT_DISTANCE = 0.5  # pixels: two points of an image that are nearer lie at one place
# if sides mean anything, the left point lies on the same side of the right one in at least this share of images
USUAL_SIDE_SHARE = 0.9
NAMES_IN_MESSAGE = 5


def describe_points(splits: Sequence[Records]) -> list[str]:
    """A line for each point: in how many images it is present, absent or unknown."""
    sources: list[Any] = [record["target"] for records in splits for record in records]
    counts = count_states(np.stack([source.states for source in sources]))
    landmarks = splits[0].metadata.landmarks
    assert landmarks is not None
    lines = ["landmarks: images in which each is present, absent, unknown"]
    for number, name in enumerate(landmarks.names):
        cells = " ".join(f"{values[number]:>8}" for values in counts.values())
        lines.append(f"  {cells}  {name}")
    return lines


def misplaced_points(findings: Findings) -> Iterator[str]:
    """Points outside their images, at one place, or likely exchanged with their partner in the mirror."""
    reader: Any = findings.reader  # a PointReader, whose module imports this one
    names = reader.names
    images: list[str] = []
    sources: list[Any] = []
    targets: list[Any] = []
    for split in findings.splits:
        for record, size, member in zip(split.records, split.sizes.tolist(), split.members, strict=True):
            if member < 0:  # the image cannot be used
                continue
            if len(size) == 3:
                target = reader.read_volume(record, read_volume_header(record["image"], record["name"]))
            else:
                target = reader.read(record, tuple(size))
            images.append(record["name"])
            sources.append(record["target"])
            targets.append(target)
    if not targets:
        return
    points = np.stack([target.points for target in targets])
    states = np.stack([target.states for target in targets])
    outside = []
    for image, number in np.argwhere(states == OUTSIDE).tolist():
        place = ", ".join(f"{side:g}" for side in sources[image].positions[reader.file_indices[number]])
        outside.append(f"{images[image]} ({names[number]} at {place})")
    if outside:
        count = counted(len(outside), "point lies outside its image", "points lie outside their images")
        yield f"{count}, and left out: {listing(outside, NAMES_IN_MESSAGE)}"
    is_placed = (states == PRESENT) | (states == OUTSIDE)
    doubles = []
    for first, second in combinations(range(len(names)), 2):
        distance = np.linalg.norm(points[:, first] - points[:, second], axis=1)
        is_double = is_placed[:, first] & is_placed[:, second] & (distance < SAME_POINT_DISTANCE)
        for image in np.flatnonzero(is_double).tolist():
            doubles.append(f"{images[image]} ({names[first]} and {names[second]})")
    if doubles:
        pairs = counted(len(doubles), "pair of points lies", "pairs of points lie")
        yield f"{pairs} at one place: {listing(doubles, NAMES_IN_MESSAGE)}"
    for first, second in enumerate(reader.landmarks.partners):
        if first < second:
            exchanged = [images[image] for image in _exchanged_images(points, is_placed, first, second)]
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


def _exchanged_images(points: np.ndarray, is_placed: np.ndarray, first: int, second: int) -> list[int]:
    """The images in which the order of a pair of points is reversed, compared with nearly all images.

    The sign of the order is the order along x or, for bodies turned in any direction, the side of the line through the
    pair on which another point lies. The sign that agrees in the largest share of images is used; if that share is too
    small, no image is returned.

    Args:
        points: (N, K, n) of N images, (y, x) or (z, y, x).
        is_placed: (N, K), which of them have a place.
    """
    numbers = np.flatnonzero(is_placed[:, first] & is_placed[:, second])
    if not len(numbers):
        return []
    start = points[numbers, first]
    direction = points[numbers, second] - start
    signs = [(numbers, direction[:, -1] > 0)]
    is_plane = points.shape[2] == 2
    for other in range(points.shape[1]):
        is_known = is_placed[numbers, other]
        if is_plane and other not in (first, second) and 2 * is_known.sum() >= len(numbers):
            offset = points[numbers, other] - start
            is_left = direction[:, 1] * offset[:, 0] > direction[:, 0] * offset[:, 1]
            signs.append((numbers[is_known], is_left[is_known]))
    sign_numbers, sign = max(signs, key=lambda numbers_and_sign: _agreement(numbers_and_sign[1]))
    if _agreement(sign) < USUAL_SIDE_SHARE:
        return []
    return sign_numbers[sign != (sign.mean() > 0.5)].tolist()


def _agreement(sign: np.ndarray) -> float:
    """The share of images with the more frequent sign."""
    return max(sign.mean(), 1 - sign.mean())


CHECKS: tuple[Check, ...] = (sides, empty_cells, misplaced_points)
