"""Labels of objects: the number and the class of each pixel's object, as one number; and masks that hold them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from data_utils.image_io.formats import RenderedMask
from unet.config import IGNORE_INDEX

CLASS_BITS = 8  # the lowest bits of a label, which hold the class of its object
LEVELS = 255  # the depth and the certainty of a pixel are whole numbers from 0 to LEVELS
PEAK = 26  # see `tasks.objects.loss.Objects`


def pack_labels(numbers: Any, classes: Any) -> Any:
    """Labels of pixels, int64 arrays or tensors: the number of the object, with its class in the lowest bits."""
    if isinstance(numbers, Tensor):
        return (numbers.long() << CLASS_BITS) | classes.long()
    return (numbers.astype(np.int64) << CLASS_BITS) | classes.astype(np.int64)


def label_numbers(labels: Any) -> Any:
    """The number of each label's object; 0 for no object."""
    return labels >> CLASS_BITS


def label_classes(labels: Any) -> Any:
    """The class of each label; 0 is background."""
    return labels & ((1 << CLASS_BITS) - 1)


def touching_pairs(numbers: np.ndarray) -> np.ndarray:
    """(N, 2): each pair of different numbers above 0 that pixels hold side by side, smaller one first."""
    pairs = []
    for axis in range(numbers.ndim):
        along = np.moveaxis(numbers, axis, 0)
        first = along[:-1]
        second = along[1:]
        differ = (first != second) & (first > 0) & (second > 0)
        pairs.append(np.stack([first[differ], second[differ]], axis=1))
    return np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)


class LabeledObjects(RenderedMask):
    """A mask whose `render` gives (H, W) int64 labels of `pack_labels`."""


@dataclass(frozen=True)
class AnnotatedObjects(LabeledObjects):
    """Objects of annotations.

    Args:
        source: renders their numbers and mask values.
        classes: mask value and index of each class of the model.
        outside: the index for objects of other values.
    """

    source: RenderedMask
    classes: tuple[tuple[int, int], ...]
    outside: int = 0

    def render(self) -> np.ndarray:
        numbers, values = self.source.render_objects()
        index_by_value = dict(self.classes) | {0: 0, IGNORE_INDEX: IGNORE_INDEX}
        indices = [index_by_value.get(value, self.outside) for value in values.tolist()]
        return pack_labels(numbers, np.array(indices)[numbers])


def class_indices(classes: Sequence[tuple[object, str]], names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Mask value and index of each class of a model of objects, given the value and name of each annotated class.

    Args:
        names: the model's names of objects; if there is one, names do not matter.
    """
    indices = []
    for value, name in classes or ((1, names[0]),):
        if not isinstance(value, int):
            continue
        if len(names) == 1:
            indices.append((value, 1))
        elif name in names:
            indices.append((value, names.index(name) + 1))
    return tuple(indices)


def holes(is_object: np.ndarray) -> np.ndarray:
    """The number of the hole that each pixel lies in, from 1, and 0 for pixels in none; int32.

    A hole is an area that an object (H, W) or (D, H, W) encloses: no way through sides or corners leads out of it.
    """
    from scipy.ndimage import generate_binary_structure, label

    around = np.pad(~is_object, 1, constant_values=True)
    regions, _ = label(around, generate_binary_structure(is_object.ndim, is_object.ndim))
    inner = (slice(1, -1),) * is_object.ndim
    return np.maximum(regions[inner] - 1, 0)  # the first region is the outside


def has_hole(is_object: np.ndarray) -> bool:
    """Whether an object encloses anything."""
    return min(is_object.shape) > 2 and bool(holes(is_object).any())
