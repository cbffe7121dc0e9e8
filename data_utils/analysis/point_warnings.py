"""Points of a data set: how many images have each, and warnings about likely mistakes."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from data_utils.analysis.inspection import InspectedSplits
from data_utils.image_io.formats import PointSource
from data_utils.image_io.volumes import read_volume_header
from data_utils.point_states import PRESENT
from data_utils.sources.points.spaces import PIXELS, PIXELS_UPWARD, to_pixels, to_voxels
from data_utils.sources.points.table import count_states
from data_utils.sources.records import Record
from runtime.console import counted, listing

SAME_POINT_DISTANCE = 0.5  # pixels: two points of an image that are nearer lie at one place
# if sides mean anything, the left point lies on the same side of the right one in at least this share of images
USUAL_SIDE_SHARE = 0.9
NAMES_IN_MESSAGE = 5


def describe_points(inspected_splits: InspectedSplits) -> list[str]:
    """A line for each point, if records hold points: in how many images it is present, absent or unknown."""
    landmarks = inspected_splits[0][1].metadata.landmarks if inspected_splits else None
    if landmarks is None:
        return []
    states: list[np.ndarray] = []
    for _, records in inspected_splits:
        states += [_source(record).states for record in records]
    counts = count_states(np.stack(states))
    lines = ["landmarks: images in which each is present, absent, unknown"]
    for number, name in enumerate(landmarks.names):
        cells = " ".join(f"{values[number]:>8}" for values in counts.values())
        lines.append(f"  {cells}  {name}")
    return lines


def point_warnings(inspected_splits: InspectedSplits, sided_pairs: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Lines on points outside their images, at one place, or likely exchanged with their partner in the mirror.

    `sided_pairs` are the indices, in the files, of the points that change places in the mirror.
    """
    landmarks = inspected_splits[0][1].metadata.landmarks if inspected_splits else None
    if landmarks is None:
        return
    point_names = landmarks.names
    outside: list[str] = []
    doubles: list[str] = []
    image_names: list[str] = []
    image_positions: list[np.ndarray] = []
    image_states: list[np.ndarray] = []
    for inspection, records in inspected_splits:
        for size, record in zip(map(tuple, inspection.sizes.tolist()), records, strict=True):
            name = record["name"]
            source = _source(record)
            positions = _positions(record, size)
            present = np.flatnonzero(source.states == PRESENT).tolist()
            has_pixels = any(size) and source.space in (PIXELS, PIXELS_UPWARD)
            for number in present:
                if has_pixels and not _is_inside(positions[number], size):
                    place = ", ".join(f"{side:g}" for side in source.positions[number])
                    outside.append(f"{name} ({point_names[number]} at {place})")
            for first, second in combinations(present, 2):
                if np.linalg.norm(positions[first] - positions[second]) < SAME_POINT_DISTANCE:
                    doubles.append(f"{name} ({point_names[first]} and {point_names[second]})")
            image_names.append(name)
            image_positions.append(positions)
            image_states.append(source.states)
    if outside:
        points = counted(len(outside), "point lies outside its image", "points lie outside their images")
        yield f"{points}, and left out: {listing(outside, NAMES_IN_MESSAGE)}"
    if doubles:
        pairs = counted(len(doubles), "pair of points lies", "pairs of points lie")
        yield f"{pairs} at one place: {listing(doubles, NAMES_IN_MESSAGE)}"
    for first, second in sided_pairs:
        indices = _exchanged_images(np.stack(image_positions), np.stack(image_states) == PRESENT, first, second)
        if indices:
            images = listing([image_names[index] for index in indices], NAMES_IN_MESSAGE)
            where = f"{counted(len(indices), 'image')}: {images}"
            yield f"{point_names[first]} and {point_names[second]} may be exchanged in {where}"


def _source(record: Record) -> PointSource:
    source = record["target"]
    assert isinstance(source, PointSource)
    return source


def _positions(record: Record, size: tuple[int, ...]) -> np.ndarray:
    """(K, n), (x, y) or (x, y, z): in pixels of an image of `size` (*spatial), if the file's unit is pixels.

    In the file's unit if it is another, or if the size is unknown: zeros where the image cannot be used.
    """
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


def _is_inside(position: np.ndarray, size: tuple[int, ...]) -> bool:
    """Whether a point lies on a pixel of an image of `size` (*spatial)."""
    return bool((position >= -0.5).all() and (position <= np.array(size[::-1]) - 0.5).all())


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
    is_plane = positions.shape[2] == 2
    for other in range(positions.shape[1]):
        is_known = is_present[images, other]
        if is_plane and other not in (first, second) and 2 * is_known.sum() >= len(images):
            offset = positions[images, other] - start
            is_left = direction[:, 0] * offset[:, 1] > direction[:, 1] * offset[:, 0]
            signs.append((images[is_known], is_left[is_known]))
    sign_images, sign = max(signs, key=lambda images_and_sign: _agreement(images_and_sign[1]))
    if _agreement(sign) < USUAL_SIDE_SHARE:
        return []
    return sign_images[sign != (sign.mean() > 0.5)].tolist()


def _agreement(sign: np.ndarray) -> float:
    """The share of images with the more frequent sign."""
    return max(sign.mean(), 1 - sign.mean())
