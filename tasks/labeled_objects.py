"""Masks of objects that are rendered as labels: number and class of each pixel, as `pack_labels` makes them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_utils.image_io.formats import RenderedMask
from tasks.object_labels import pack_labels
from unet.config import IGNORE_INDEX


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
