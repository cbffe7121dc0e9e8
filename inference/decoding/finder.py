"""Objects in the answers of pixels: the connected components of the foreground, cut where they are shallow.

A component is cut by itself, in its own box, by a watershed from its deep parts: so the objects depend on the answers
alone, not on the strips in which they come. They are numbered from top to bottom by their first pixel.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_utils.holes import has_hole, holes
from data_utils.visualize_objects import choose_shades, touching_pairs
from inference.decoding.answers import LEVELS, answer_certainties, answer_classes, answer_depths
from inference.decoding.canvas import Canvas
from inference.decoding.components import Component, ComponentStream
from runtime.errors import DataError
from tasks.matching import CLASS_BITS, pack_labels
from tasks.objects import Objects

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
        shade: its color in overlays, an index of `visualize_objects.COLORS`; objects that touch differ in it.
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


class ObjectFinder:
    """Finds the objects of one image or volume.

    Args:
        task: which objects are left out, and whether holes are filled.
        scratch: the folder of a temporary file, which holds the numbers of a large image's pixels.

    Attributes:
        objects: the objects in the order of their numbers, once all strips are read.
    """

    def __init__(self, task: Objects, scratch: Path | None = None) -> None:
        self.task = task
        self.scratch = scratch
        self.objects: list[DetectedObject] = []
        self._components = ComponentStream()
        self._canvas: Canvas | None = None
        self._placed: list[PlacedObject] = []
        self._touching: list[tuple[int, int]] = []  # pairs of numbers of objects that touch
        self._hollow: list[int] = []  # the indices of objects that have holes to fill

    def add(self, answers: np.ndarray) -> None:
        """Read the next strip (n, ...) of packed answers."""
        if self._canvas is None:
            self._canvas = Canvas(answers.shape[1:], self.scratch)
        self._canvas.grow(len(answers))
        for component in self._components.add(answers):
            self._separate(component)

    def finish(self) -> Iterator[np.ndarray]:
        """The labels of all pixels from top to bottom, int32: number and class, as `pack_labels` makes them."""
        if self._canvas is None:
            return
        for component in self._components.finish():
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
        for number, index in enumerate(order, 1):
            detected = self._placed[index].detected
            self.objects.append(detected._replace(number=number, shade=int(shades[number])))
            label_by_number[detected.number] = pack_labels(np.array(number), np.array(detected.class_index))
        for strip in self._canvas.strips():
            yield label_by_number[strip]

    def _kept(self) -> list[int]:
        """The indices of the objects that are not left out."""
        assert self._canvas is not None
        if not self.task.drops_border:
            return list(range(len(self._placed)))
        size = (self._canvas.rows, *self._canvas.sides)
        indices = []
        for index, placed in enumerate(self._placed):
            start = placed.detected.box[: len(size)]
            end = placed.detected.box[len(size) :]
            if min(start) > 0 and all(stop < side for stop, side in zip(end, size, strict=True)):
                indices.append(index)
        return indices

    def _fill(self, index: int) -> None:
        """Fill the holes of an object, unless another object lies there."""
        assert self._canvas is not None
        first_pixel, detected = self._placed[index]
        axes = len(first_pixel)
        start = detected.box[:axes]
        window = tuple(slice(low, high) for low, high in zip(start, detected.box[axes:], strict=True))
        values = self._canvas.values[window]
        hole_numbers = holes(values == detected.number)
        occupied = np.unique(hole_numbers[values > 0])
        is_filled = (hole_numbers > 0) & ~np.isin(hole_numbers, occupied)
        pixels = int(is_filled.sum())
        if not pixels:
            return
        values[is_filled] = detected.number
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

        assert self._canvas is not None
        labels, count = separate_objects(component.values)
        if count == 1:
            self._add_object(component, labels > 0)
            return
        for label, box in enumerate(find_objects(labels), 1):
            start = tuple(first + side.start for first, side in zip(component.start, box, strict=True))
            self._add_object(Component(start, component.values[box]), labels[box] == label)
        numbers = np.where(labels > 0, self._canvas.values[component.window], 0)  # other components may lie in the box
        self._touching += map(tuple, touching_pairs(numbers).tolist())

    def _add_object(self, box: Component, is_object: np.ndarray) -> None:
        """Keep the object whose pixels in a box are marked, unless it is too small."""
        assert self._canvas is not None
        positions = np.nonzero(is_object)
        size = len(positions[0])
        if size < self.task.smallest:
            return
        if len(self._placed) == MOST_OBJECTS:
            raise DataError(f"the prediction has more than {MOST_OBJECTS:,} objects; cut the image into parts")
        number = len(self._placed) + 1
        self._canvas.values[box.window][is_object] = number
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
