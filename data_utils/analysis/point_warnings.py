"""Points of a data set: how many images have each, and warnings about likely mistakes."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from data_utils.analysis.inspection import InspectedSplits
from data_utils.image_io.formats import PointSource
from data_utils.image_io.volumes import read_volume_header
from data_utils.sources.points.spaces import PIXELS, PIXELS_UPWARD, to_pixels, to_voxels
from data_utils.sources.points.table import count_states
from data_utils.sources.records import Record
from runtime.console import counted, listing
from tasks.points import PRESENT

SAME_POINT_DISTANCE = 0.5  # pixels: two points of an image that are nearer lie at one place
# if sides mean anything, the left point lies on the same side of the right one in at least this share of images
USUAL_SIDE_SHARE = 0.9


def describe_points(inspected_splits: InspectedSplits) -> list[str]:
    """A line for each point, if records hold points: in how many images it is present, absent or unknown."""
    landmarks = inspected_splits[0][1].metadata.landmarks if inspected_splits else None
    if landmarks is None:
        return []
    states = []
    for _, records in inspected_splits:
        states += [_source(record).states for record in records]
    counts = count_states(np.stack(states))
    lines = ["landmarks: images in which each is present, absent, unknown"]
    for number, name in enumerate(landmarks.names):
        cells = " ".join(f"{values[number]:>8}" for values in counts.values())
        lines.append(f"  {cells}  {name}")
    return lines


def point_warnings(inspected_splits: InspectedSplits, sided_pairs: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """Lines on points outside their images, at one place, or likely exchanged with their partner in the mirror.

    `sided_pairs` are the indices, in the files, of the points that change places in the mirror.
    """
    landmarks = inspected_splits[0][1].metadata.landmarks if inspected_splits else None
    if landmarks is None:
        return ()
    names = landmarks.names
    outside: list[str] = []
    doubles: list[str] = []
    images = list(_images(inspected_splits))
    for image in images:
        for number in image.outside():
            position = ", ".join(f"{side:g}" for side in image.source.positions[number])
            outside.append(f"{image.name} ({names[number]} at {position})")
        for first, second in image.doubles():
            doubles.append(f"{image.name} ({names[first]} and {names[second]})")
    lines = []
    if outside:
        points = counted(len(outside), "point lies outside its image", "points lie outside their images")
        lines.append(f"{points}, and left out: {_list_texts(outside)}")
    if doubles:
        pairs = counted(len(doubles), "pair of points lies", "pairs of points lie")
        lines.append(f"{pairs} at one place: {_list_texts(doubles)}")
    if sided_pairs and images:
        positions = np.stack([image.positions for image in images])
        is_present = np.stack([image.source.states for image in images]) == PRESENT
        for first, second in sided_pairs:
            indices = _exchanged_images(positions, is_present, first, second)
            odd = [images[index].name for index in indices]
            if odd:
                where = f"{counted(len(odd), 'image')}: {_list_texts(odd)}"
                lines.append(f"{names[first]} and {names[second]} may be exchanged in {where}")
    return tuple(lines)


class _ImagePoints(NamedTuple):
    """The points of an image.

    Args:
        size: (*spatial); zeros where the image cannot be used.
        positions: (K, n), (x, y) or (x, y, z): in pixels of the image as it is read if its size is known and the file's
            unit is pixels; else in the file's unit.
        present: the indices of the points that are present.
    """

    name: str
    size: tuple[int, ...]
    source: PointSource
    positions: np.ndarray
    present: list[int]

    def outside(self) -> list[int]:
        """The present points that lie outside of the image; empty if the size or the unit is unknown."""
        if not any(self.size) or self.source.space not in (PIXELS, PIXELS_UPWARD):
            return []
        last = np.array(self.size[::-1]) - 0.5
        numbers = []
        for number in self.present:
            position = self.positions[number]
            if (position < -0.5).any() or (position > last).any():
                numbers.append(number)
        return numbers

    def doubles(self) -> Iterator[tuple[int, int]]:
        """The pairs of present points that lie at one place."""
        for first, second in combinations(self.present, 2):
            if np.linalg.norm(self.positions[first] - self.positions[second]) < SAME_POINT_DISTANCE:
                yield first, second


def _images(inspected_splits: InspectedSplits) -> Iterator[_ImagePoints]:
    """The points of each image."""
    for inspection, records in inspected_splits:
        for index, record in enumerate(records):
            source = _source(record)
            size = tuple(inspection.sizes[index].tolist())
            present = np.flatnonzero(source.states == PRESENT).tolist()
            yield _ImagePoints(record["name"], size, source, _positions(record, size), present)


def _positions(record: Record, size: tuple[int, ...]) -> np.ndarray:
    """The `positions` of `_ImagePoints`."""
    source = _source(record)
    if not any(size):
        return source.positions
    if len(size) == 2:
        height, width = size
        return to_pixels(source, (height, width), record["name"])[:, ::-1]
    if source.space != PIXELS:
        return source.positions
    header = read_volume_header(record["image"], record["name"])
    return to_voxels(source.positions, source.space, header)[:, ::-1]


def _source(record: Record) -> PointSource:
    source = record["target"]
    assert isinstance(source, PointSource)
    return source


def _exchanged_images(positions: np.ndarray, is_present: np.ndarray, first: int, second: int) -> list[int]:
    """The images in which the order of a pair of points is reversed, compared with nearly all images.

    The sign of the order is the order along x or, for bodies turned in any direction, the side of the line through the
    pair on which another point lies. The sign that agrees in the largest share of images is used; if that share is too
    small, no image is returned.

    Args:
        positions: (N, K, n) of N images, (x, y) or (x, y, z).
        is_present: (N, K).
    """
    images = np.flatnonzero(is_present[:, first] & is_present[:, second])
    if not len(images):
        return []
    start = positions[images, first]
    direction = positions[images, second] - start
    signs = [(images, direction[:, 0] > 0)]
    if positions.shape[2] == 2:
        for other in range(positions.shape[1]):
            is_known = is_present[images, other]
            if other in (first, second) or 2 * is_known.sum() < len(images):
                continue
            offset = positions[images, other] - start
            is_left = direction[:, 0] * offset[:, 1] > direction[:, 1] * offset[:, 0]
            signs.append((images[is_known], is_left[is_known]))
    shares = [max(sign.mean(), 1 - sign.mean()) for _, sign in signs]
    best = int(np.argmax(shares))
    if shares[best] < USUAL_SIDE_SHARE:
        return []
    sign_images, sign = signs[best]
    return sign_images[sign != (sign.mean() > 0.5)].tolist()


def _list_texts(texts: Sequence[str]) -> str:
    return listing(texts, limit=5)
