"""Objects in the answers of pixels: the connected components of the foreground, cut where they are shallow.

A component is cut by itself, in its own box, by a watershed from its deep parts: so the objects depend on the answers
alone, not on the strips in which they come. They are numbered from top to bottom by their first pixel.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from data_utils.holes import has_hole, holes
from runtime.errors import DataError
from runtime.scratch import release, row_spans
from tasks.components import Component, components
from tasks.drawing import choose_shades, touching_pairs
from tasks.object_labels import CLASS_BITS, pack_labels
from tasks.objects.answers import LEVELS, answer_certainties, answer_classes, answer_depths
from tasks.objects.loss import Objects

BLUR = 1.0  # pixels, standard deviation: smooths the steps of a learned depth, which are no objects
PEAK = 26  # of LEVELS: a seed is so much deeper than every path from it to a deeper place
MOST_OBJECTS = 2 ** (31 - CLASS_BITS) - 1


class DetectedObject(NamedTuple):
    """An object of a prediction; positions are (y, x), or (z, y, x) of volumes, in pixels; the first center is at 0.

    Args:
        number: its value in the mask.
        class_index: its class, from 1.
        size: its area or volume in pixels.
        center: the mean of its pixels' positions.
        box: its first position along each axis, and then the position after its last one: (top, left, bottom, right).
        score: the mean probability that its pixels are not background.
        shade: its color in overlays, an index of the `palette`; objects that touch differ in it.
    """

    number: int
    class_index: int
    size: int
    center: tuple[float, ...]
    box: tuple[int, ...]
    score: float
    shade: int = 0


class PlacedObject(NamedTuple):
    """An object and the position of its first pixel, by which objects are numbered."""

    first_pixel: tuple[int, ...]
    detected: DetectedObject


def find_objects(labels: np.ndarray, task: Objects) -> list[DetectedObject]:
    """The objects in packed answers (*spatial) int32, in the order of their numbers.

    The answers are replaced by the labels of the objects: number and class, as `pack_labels` makes them.
    """
    return ObjectFinder(labels, task).find()


class ObjectFinder:
    """Finds the objects of one image or volume.

    Args:
        labels: the packed answers. A pixel that an object has taken holds minus the object's number.
        task: which objects are left out, and whether holes are filled.
    """

    def __init__(self, labels: np.ndarray, task: Objects) -> None:
        self.labels = labels
        self.task = task
        self._placed: list[PlacedObject] = []
        self._touching: list[tuple[int, int]] = []  # pairs of numbers of objects that touch
        self._hollow: list[int] = []  # the indices of objects that have holes to fill

    def find(self) -> list[DetectedObject]:
        """The objects; the answers then are their labels."""
        for component in components(self._strips()):
            self._separate(component)
        for index in self._hollow:
            self._fill(index)
        order = sorted(self._kept(), key=self._first_pixel)
        final_number = np.zeros(len(self._placed) + 1, np.int64)  # 0 for objects that are left out
        final_number[np.array(order, np.int64) + 1] = np.arange(1, len(order) + 1)
        pairs = final_number[np.array(self._touching, np.int64).reshape(-1, 2)]
        pairs = pairs[(pairs > 0).all(axis=1)]
        shades = choose_shades(len(order), map(tuple, pairs.tolist()))
        label_by_number = np.zeros(len(self._placed) + 1, np.int32)
        objects = []
        for number, index in enumerate(order, 1):
            detected = self._placed[index].detected
            objects.append(detected._replace(number=number, shade=int(shades[number])))
            label_by_number[detected.number] = pack_labels(np.array(number), np.array(detected.class_index))
        for strip in self._strips():
            strip[...] = label_by_number[np.maximum(-strip, 0)]
        return objects

    def _strips(self) -> Iterator[np.ndarray]:
        for rows in row_spans(len(self.labels)):
            yield self.labels[rows]
            release(self.labels)

    def _kept(self) -> list[int]:
        """The indices of the objects that are not left out."""
        if not self.task.drops_border:
            return list(range(len(self._placed)))
        size = self.labels.shape
        indices = []
        for index, placed in enumerate(self._placed):
            start = placed.detected.box[: len(size)]
            end = placed.detected.box[len(size) :]
            if min(start) > 0 and all(stop < side for stop, side in zip(end, size, strict=True)):
                indices.append(index)
        return indices

    def _fill(self, index: int) -> None:
        """Fill the holes of an object, unless another object lies there."""
        first_pixel, detected = self._placed[index]
        axes = len(first_pixel)
        start = detected.box[:axes]
        window = tuple(map(slice, start, detected.box[axes:]))
        values = self.labels[window]
        hole_numbers = holes(values == -detected.number)
        occupied = np.unique(hole_numbers[values < 0])
        is_filled = (hole_numbers > 0) & ~np.isin(hole_numbers, occupied)
        pixels = int(is_filled.sum())
        if not pixels:
            return
        values[is_filled] = -detected.number
        size = detected.size + pixels
        center = []
        for low, mean, positions in zip(start, detected.center, np.nonzero(is_filled), strict=True):
            center.append((mean * detected.size + low * pixels + int(positions.sum())) / size)
        self._placed[index] = PlacedObject(first_pixel, detected._replace(size=size, center=tuple(center)))

    def _first_pixel(self, index: int) -> tuple[int, ...]:
        return self._placed[index].first_pixel

    def _separate(self, component: Component) -> None:
        """Find the objects of a component; they get the next numbers for now."""
        from scipy.ndimage import find_objects

        pieces, count = separate_objects(component.values)
        if count == 1:
            self._add_object(component, pieces > 0)
            return
        for number, box in enumerate(find_objects(pieces), 1):
            start = tuple(first + side.start for first, side in zip(component.start, box, strict=True))
            self._add_object(Component(start, component.values[box]), pieces[box] == number)
        # other components may lie in the box
        numbers = np.where(pieces > 0, -self.labels[component.window], 0).clip(0)
        self._touching += map(tuple, touching_pairs(numbers).tolist())

    def _add_object(self, box: Component, is_object: np.ndarray) -> None:
        """Keep the object whose pixels in a box are marked, unless it is too small."""
        positions = np.nonzero(is_object)
        size = len(positions[0])
        if size < self.task.smallest:
            return
        if len(self._placed) == MOST_OBJECTS:
            raise DataError(f"the prediction has more than {MOST_OBJECTS:,} objects; cut the image into parts")
        number = len(self._placed) + 1
        self.labels[box.window][is_object] = -number
        answers = box.values[is_object]
        center = []
        first_pixel = []
        end = []
        for start, axis, side in zip(box.start, positions, is_object.shape, strict=True):
            center.append(start + int(axis.sum()) / size)
            first_pixel.append(start + int(axis[0]))
            end.append(start + side)
        detected = DetectedObject(
            number=number,
            class_index=int(np.bincount(answer_classes(answers)).argmax()),
            size=size,
            center=tuple(center),
            box=(*box.start, *end),
            score=int(answer_certainties(answers).sum()) / (LEVELS * size),
        )
        if self.task.fills_holes and has_hole(is_object):
            self._hollow.append(len(self._placed))
        self._placed.append(PlacedObject(tuple(first_pixel), detected))


def separate_objects(answers: np.ndarray) -> tuple[np.ndarray, int]:
    """The objects of a component, numbered from 1, int32, 0 where `answers` is 0; and the number of objects.

    The seeds of the watershed are the peaks of the depth, after a little blur. A component with one peak is one object.
    """
    from scipy.ndimage import gaussian_filter, generate_binary_structure, label
    from skimage.morphology import local_maxima, reconstruction
    from skimage.segmentation import watershed

    depth = answer_depths(answers).astype(np.float32)
    depth = gaussian_filter(depth, BLUR, mode="constant").round().astype(np.int16)
    is_component = answers > 0
    everywhere = generate_binary_structure(answers.ndim, answers.ndim)
    # `skimage.morphology.h_maxima` takes equal peaks for two, however shallow the valley between them
    lowered_peaks = reconstruction(depth - PEAK, depth, footprint=everywhere)
    is_peak = local_maxima(lowered_peaks, connectivity=answers.ndim) & is_component
    seeds, count = label(is_peak, everywhere)
    if count < 2:
        return is_component.astype(np.int32), 1
    return watershed(LEVELS - depth, seeds, mask=is_component), count
