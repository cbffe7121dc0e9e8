"""Likely mistakes in points, a line each, and how many images have each point."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from data_utils.analysis.findings import Findings
from data_utils.image_io.volumes import read_volume_header
from data_utils.point_states import OUTSIDE, PRESENT
from data_utils.sources.points.table import count_states
from data_utils.sources.records import Records
from runtime.console import counted, listing
from tasks.landmarks.loss import Landmarks

SAME_POINT_DISTANCE = 0.5  # pixels: two points of an image that are nearer lie at one place
USUAL_ORDER_SHARE = 0.9  # a pair of points has a usual order if at least this share of images has it
NAMES_IN_MESSAGE = 5


def describe_points(splits: Sequence[Records]) -> list[str]:
    """A line for each point: in how many images it is present, absent or unknown."""
    sources: list[Any] = [record["target"] for records in splits for record in records]
    counts = count_states(np.stack([source.states for source in sources]))
    landmarks = splits[0].metadata.landmarks
    assert landmarks is not None
    lines = [f"landmarks: {splits[0].image_kind}s in which each is present, absent, unknown"]
    for number, name in enumerate(landmarks.names):
        cells = " ".join(f"{values[number]:>8}" for values in counts.values())
        lines.append(f"  {cells}  {name}")
    return lines


def misplaced_points(findings: Findings, landmarks: Landmarks, file_indices: Sequence[int]) -> Iterator[str]:
    """Points outside their images, in no image, at one place, or likely exchanged with their partner in the mirror.

    Args:
        file_indices: the index of each point in the files.
    """
    reader = findings.reader
    assert reader is not None
    names = landmarks.names
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
        place = ", ".join(f"{side:g}" for side in sources[image].positions[file_indices[number]])
        outside.append(f"{images[image]} ({names[number]} at {place})")
    if outside:
        count = counted(len(outside), "point lies outside its image", "points lie outside their images")
        yield f"{count}, and left out: {listing(outside, NAMES_IN_MESSAGE)}"
    missing = [name for name, is_present in zip(names, (states == PRESENT).any(axis=0), strict=True) if not is_present]
    if missing:
        yield f"no image has the point {listing(missing, NAMES_IN_MESSAGE)}, whose place cannot be learned"
    is_placed = (states == PRESENT) | (states == OUTSIDE)
    if is_placed.any() and np.abs(points[is_placed]).max() <= 1:
        yield "all points lie within one pixel of the corner; positions are pixels, no shares of the size: are these?"
    doubles = []
    for first, second in combinations(range(len(names)), 2):
        distance = np.linalg.norm(points[:, first] - points[:, second], axis=1)
        is_double = is_placed[:, first] & is_placed[:, second] & (distance < SAME_POINT_DISTANCE)
        for image in np.flatnonzero(is_double).tolist():
            doubles.append(f"{images[image]} ({names[first]} and {names[second]})")
    if doubles:
        pairs = counted(len(doubles), "pair of points lies", "pairs of points lie")
        yield f"{pairs} at one place: {listing(doubles, NAMES_IN_MESSAGE)}"
    for first, second in enumerate(landmarks.partners):
        if first < second:
            exchanged = [images[image] for image in _exchanged_images(points, is_placed, first, second)]
            if exchanged:
                where = f"{counted(len(exchanged), 'image')}: {listing(exchanged, NAMES_IN_MESSAGE)}"
                yield f"{names[first]} and {names[second]} may be exchanged in {where}"


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
    """The images in which the order of a pair of points along x is reversed, if it is the same in nearly all others.

    Args:
        points: (N, K, n) of N images, (y, x) or (z, y, x).
        is_placed: (N, K), which of them have a place.
    """
    numbers = np.flatnonzero(is_placed[:, first] & is_placed[:, second])
    if not len(numbers):
        return []
    is_rising = points[numbers, second, -1] > points[numbers, first, -1]
    share = is_rising.mean()
    if max(share, 1 - share) < USUAL_ORDER_SHARE:
        return []
    return numbers[is_rising != (share > 0.5)].tolist()
