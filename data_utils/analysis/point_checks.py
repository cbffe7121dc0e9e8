"""What `--check-data` says of points: how many of each there are, and which are likely mistakes."""

from collections.abc import Iterator, Sequence

import numpy as np

from data_utils.analysis.inspect import SplitInspection
from data_utils.image_io.formats import PointSource
from data_utils.sources.points.spaces import PIXELS, UPWARD, to_pixels
from data_utils.sources.points.table import count_states
from data_utils.sources.records import Records
from runtime.console import first_few
from tasks.points import PRESENT

SAME = 0.5  # pixels: two points of an image that are nearer lie at one place
USUAL = 0.9  # where sides mean something, so many images have the left point on one side of the right one
NAMED = 5  # images in a line
Splits = Sequence[tuple[SplitInspection, Records]]


def describe_points(splits: Splits) -> list[str]:
    """A line for each point of records that hold some: in how many images it is present, absent or unknown."""
    landmarks = splits[0][1].landmarks if splits else None
    if landmarks is None:
        return []
    states = np.stack([source.states for _, _, source in _sources(splits)])
    counts = count_states(states)
    lines = ["landmarks: images in which each is present, absent, unknown"]
    for number, name in enumerate(landmarks.names):
        cells = " ".join(f"{values[number]:>8}" for values in counts.values())
        lines.append(f"  {cells}  {name}")
    return lines


def point_warnings(splits: Splits, sided_pairs: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """Lines on points outside their images, at one place, or likely exchanged with their partner in the mirror.

    `sided_pairs` are the indices, in the files, of the points that change places in the mirror.
    """
    landmarks = splits[0][1].landmarks if splits else None
    if landmarks is None:
        return ()
    names = landmarks.names
    outside: list[str] = []
    doubles: list[str] = []
    directions: dict[tuple[int, int], list[tuple[str, bool]]] = {}
    for name, size, source in _sources(splits):
        present = np.flatnonzero(source.states == PRESENT)
        positions = source.positions
        if len(size) == 2 and all(size):
            height, width = size
            positions = to_pixels(source, (height, width), name)[:, ::-1]
        if any(size) and source.space in (PIXELS, UPWARD):
            extent = np.array(size[::-1])
            for number in present.tolist():
                if (positions[number] < -0.5).any() or (positions[number] > extent - 0.5).any():
                    place = ", ".join(f"{side:g}" for side in positions[number])
                    outside.append(f"{name} ({names[number]} at {place})")
        for first, second in _pairs(present):
            if np.linalg.norm(positions[first] - positions[second]) < SAME:
                doubles.append(f"{name} ({names[first]} and {names[second]})")
        for first, second in sided_pairs:
            if {first, second} <= set(present.tolist()):
                is_before = bool(positions[first][0] < positions[second][0])
                directions.setdefault((first, second), []).append((name, is_before))
    lines = []
    if outside:
        lines.append(f"{len(outside)} points lie outside their images: {_listed(outside)}; they are left out")
    if doubles:
        lines.append(f"{len(doubles)} pairs of points lie at one place: {_listed(doubles)}")
    for (first, second), sides in directions.items():
        share = sum(is_before for _, is_before in sides) / len(sides)
        if max(share, 1 - share) >= USUAL:
            odd = [name for name, is_before in sides if is_before != (share > 0.5)]
            if odd:
                lines.append(
                    f"{names[first]} and {names[second]} may be exchanged in {len(odd)} images: {_listed(odd)}"
                )
    return tuple(lines)


def _sources(splits: Splits) -> Iterator[tuple[str, tuple[int, ...], PointSource]]:
    """Name, size and points of each image."""
    for inspection, records in splits:
        for index, record in enumerate(records):
            source = record["target"]
            assert isinstance(source, PointSource)
            yield record["name"], tuple(inspection.sizes[index].tolist()), source


def _pairs(numbers: np.ndarray) -> Iterator[tuple[int, int]]:
    for place, first in enumerate(numbers.tolist()):
        for second in numbers[place + 1 :].tolist():
            yield first, second


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(first_few(texts, NAMED))
