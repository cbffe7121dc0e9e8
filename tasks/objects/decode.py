"""Objects: found in the classes and depths of all pixels.

The connected components of the foreground are cut where they are shallow, each by itself and in its own box, by a
watershed from its deep parts. The objects are numbered from top to bottom by their first pixel.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from runtime.errors import DataError
from runtime.scratch import release, row_spans
from tasks.objects.labels import CLASS_BITS, LEVELS, PEAK, holes, pack_labels
from tasks.task import NO_DATA

if TYPE_CHECKING:
    from tasks.objects.loss import Objects

Numbers = TypeVar("Numbers", np.ndarray, Tensor)

BYTE = 255
DEPTH_SHIFT = 8
CERTAINTY_SHIFT = 16
BLUR = 1.0  # pixels, standard deviation: smooths the steps of a learned depth, which are no objects
PIXELS_AT_ONCE = 2**24  # in which connected components are found
OBJECTS_TOGETHER = 1000  # whose pixels are in memory together while holes are filled
MOST_OBJECTS = 2 ** (31 - CLASS_BITS) - 1


class DetectedObject(NamedTuple):
    """An object of a prediction; positions are (y, x), or (z, y, x) of volumes, in pixels; the first center is at 0.

    Args:
        number: its value in the mask.
        class_index: its class, from 1.
        size: its area or volume in pixels.
        center: the mean of its pixels' positions.
        box: its first position along each axis, and then the position after its last one: (top, left, bottom, right).
        score: the mean probability that its pixels, but for filled holes, are not background.
    """

    number: int
    class_index: int
    size: int
    center: tuple[float, ...]
    box: tuple[int, ...]
    score: float


def pack_pixels(classes: Numbers, depths: Numbers, certainties: Numbers) -> Numbers:
    """The class, depth and certainty of pixels, as integers of at least 32 bits.

    Args:
        classes: 0 for background; it lies in the lowest eight bits.
        depths: within an object, 0 to LEVELS; they lie in the next eight bits.
        certainties: that a pixel is not background, 0 to LEVELS.
    """
    return classes | (depths << DEPTH_SHIFT) | (certainties << CERTAINTY_SHIFT)


def unpack_pixels(packed: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The classes, depths and certainties of `pack_pixels`."""
    return packed & BYTE, (packed >> DEPTH_SHIFT) & BYTE, packed >> CERTAINTY_SHIFT


class FoundObjects:
    """The objects of an image, which come one after another.

    Args:
        labels: (*spatial) int32, above 0 only where an object may still be found, NO_DATA where none can lie; holds the
            objects' labels at last.
    """

    def __init__(self, labels: np.ndarray, task: "Objects") -> None:
        self.labels = labels
        self.task = task
        self._found: list[tuple[tuple[int, ...], DetectedObject]] = []  # each with its first pixel

    def add(self, window: tuple[slice, ...], packed: np.ndarray, pieces: np.ndarray) -> None:
        """Take the pieces of a component, unless they are too small for objects.

        Args:
            window: the box of the component in the image.
            packed, pieces: the packed pixels in the box, and the number of each pixel's piece, from 1.
        """
        from scipy import ndimage

        for piece, box in enumerate(ndimage.find_objects(pieces), 1):
            is_object = pieces[box] == piece
            corner = [side.start + inner.start for side, inner in zip(window, box, strict=True)]
            positions = np.argwhere(is_object) + corner
            if len(positions) < self.task.smallest:
                continue
            if len(self._found) == MOST_OBJECTS:
                raise DataError(f"the prediction has more than {MOST_OBJECTS:,} objects; cut the image into parts")
            detected = _measure(len(self._found) + 1, positions, packed[box][is_object])
            self.labels[tuple(positions.T)] = -detected.number  # until all objects are known
            self._found.append((tuple(positions[0].tolist()), detected))

    def finish(self) -> list[DetectedObject]:
        """The objects in the order of their numbers, with which `labels` is filled."""
        labels = self.labels
        if self.task.fills_holes:
            for index, (first_pixel, detected) in enumerate(self._found):
                self._found[index] = first_pixel, _fill_holes(labels, detected)
                if index % OBJECTS_TOGETHER == 0:
                    release(labels)
        label_by_number = np.zeros(len(self._found) + 1, np.int32)  # 0 for objects that are left out
        objects: list[DetectedObject] = []
        for _, detected in sorted(self._found):
            if self.task.drops_border and _touches_border(detected, labels.shape):
                continue
            number = len(objects) + 1
            objects.append(detected._replace(number=number))
            label_by_number[detected.number] = pack_labels(np.array(number), np.array(detected.class_index))
        for rows in row_spans(len(labels)):
            labels[rows] = label_by_number[np.where(labels[rows] == NO_DATA, 0, -labels[rows])]
            release(labels)
        return objects


def find_objects(packed: np.ndarray, variants: Sequence["Objects"]) -> list[tuple[np.ndarray, list[DetectedObject]]]:
    """The labels and the objects, in the order of their numbers, in packed pixels (*spatial) int32, for some tasks.

    Labels hold number and class, as `pack_labels` makes them; the first ones take the place of the packed pixels.

    Args:
        variants: tasks that differ in their peaks only, smaller ones first.
    """
    labels = [packed, *(np.zeros_like(packed) for _ in variants[1:])]
    found = list(map(FoundObjects, labels, variants))
    for window, is_component in _components(packed):
        component = np.where(is_component, packed[window], 0)
        packed[window][is_component] = 0
        if np.count_nonzero(is_component) < variants[0].smallest:
            continue  # a network that has hardly learned finds thousands of them
        pieces = None
        for objects in found:
            if pieces is None or pieces.max() > 1:  # what a smaller peak has left whole, a larger one leaves, too
                pieces = separate_objects(component, objects.task.peak)
            objects.add(window, component, pieces)
    return [(objects.labels, objects.finish()) for objects in found]


def _components(packed: np.ndarray) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """The box of each connected component of pixels above 0, as an index of them, and its pixels in the box, bool.

    They are found some rows at a time, so that little of a large array is in memory. A component that may go on below
    is found with the next rows. Whoever takes a component leaves none of its pixels above 0.
    """
    from scipy import ndimage

    usual_rows = max(1, PIXELS_AT_ONCE * len(packed) // packed.size)
    rows = usual_rows
    top = 0
    while top < len(packed):
        bottom = top + rows
        components, _ = ndimage.label(packed[top:bottom] > 0)
        next_top = bottom
        for component, box in enumerate(ndimage.find_objects(components), 1):
            first = top + box[0].start
            stop = top + box[0].stop
            if stop == bottom < len(packed):
                next_top = min(next_top, first)
            else:
                yield (slice(first, stop), *box[1:]), components[box] == component
        rows = usual_rows if next_top > top else 2 * rows  # for a component that is higher
        top = next_top
        release(packed)


def separate_objects(packed: np.ndarray, peak: int = PEAK) -> np.ndarray:
    """The objects of a component, numbered from 1, int32, 0 where `packed` is 0.

    The seeds of the watershed are the peaks of the depth, after a little blur. A component with one peak is one object.

    Args:
        peak: see `tasks.objects.loss.Objects`.
    """
    from scipy.ndimage import gaussian_filter, generate_binary_structure, label
    from skimage.morphology import local_maxima, reconstruction
    from skimage.segmentation import watershed

    _, depths, _ = unpack_pixels(packed)
    depth = gaussian_filter(depths.astype(np.float32), BLUR, mode="constant").round().astype(np.int16)
    is_component = packed > 0
    everywhere = generate_binary_structure(packed.ndim, packed.ndim)
    # `skimage.morphology.h_maxima` takes equal peaks for two, however shallow the valley between them
    lowered_peaks = reconstruction(depth - peak, depth, footprint=everywhere)
    is_peak = local_maxima(lowered_peaks, connectivity=packed.ndim) & is_component
    seeds, count = label(is_peak, everywhere)
    if count < 2:
        return is_component.astype(np.int32)
    return watershed(LEVELS - depth, seeds, mask=is_component)


def _measure(number: int, positions: np.ndarray, packed: np.ndarray) -> DetectedObject:
    """An object from the positions (N, axes) and its packed pixels (N,)."""
    classes, _, certainties = unpack_pixels(packed)
    return DetectedObject(
        number=number,
        class_index=int(np.bincount(classes).argmax()),
        size=len(positions),
        center=tuple((positions.sum(axis=0) / len(positions)).tolist()),
        box=(*positions.min(axis=0).tolist(), *(positions.max(axis=0) + 1).tolist()),
        score=int(certainties.sum()) / (LEVELS * len(positions)),
    )


def _fill_holes(numbers: np.ndarray, detected: DetectedObject) -> DetectedObject:
    """Fill the holes of an object, unless another object lies there, or no data; pixels of objects hold -number."""
    start, end = _corners(detected)
    values = numbers[tuple(map(slice, start, end))]
    hole_numbers = holes(values == -detected.number)
    occupied = np.unique(hole_numbers[values < 0])
    is_filled = (hole_numbers > 0) & ~np.isin(hole_numbers, occupied)
    added = np.argwhere(is_filled) + start
    if not len(added):
        return detected
    values[is_filled] = -detected.number
    size = detected.size + len(added)
    center = (np.array(detected.center) * detected.size + added.sum(axis=0)) / size
    return detected._replace(size=size, center=tuple(center.tolist()))


def _touches_border(detected: DetectedObject, size: tuple[int, ...]) -> bool:
    """Whether an object reaches the border of an image of a size."""
    start, end = _corners(detected)
    return min(start) == 0 or any(stop == side for stop, side in zip(end, size, strict=True))


def _corners(detected: DetectedObject) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first position in the box of an object, and the one after the last."""
    axes = len(detected.center)
    return detected.box[:axes], detected.box[axes:]
