"""True masks from annotations, in the classes of a model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_utils.class_map import ClassMap
from data_utils.class_names import NamedClasses, is_background
from data_utils.image_io.formats import RenderedMask
from runtime.errors import DataError
from tasks.object_labels import pack_labels
from unet.config import IGNORE_INDEX


@dataclass(frozen=True)
class AnnotatedObjects(RenderedMask):
    """True objects, from annotations.

    Args:
        source: renders their numbers and mask values.
        index_by_value: for each mask value, the model's index of its class, 0 for none.
    """

    source: RenderedMask
    index_by_value: tuple[int, ...]

    def render(self) -> np.ndarray:
        """(H, W) int64: number and class of each pixel, as `tasks.object_labels.pack_labels` makes them."""
        numbers, values = self.source.render_objects()
        classes = np.array(self.index_by_value)[values]
        classes[values == IGNORE_INDEX] = IGNORE_INDEX
        return pack_labels(numbers, classes[numbers])


def value_indices(classes: Sequence[tuple[object, str]], names: Sequence[str]) -> tuple[int, ...]:
    """The index of each mask value's class, given the value and name of each, and the model's names of objects.

    Names do not matter for a model of one class.
    """
    classes = classes or ((1, names[0]),)
    highest = max(value for value, _ in classes if isinstance(value, int))
    indices = [0] * (max(highest, IGNORE_INDEX) + 1)
    for value, name in classes:
        if not isinstance(value, int) or value in (0, IGNORE_INDEX):
            continue
        if len(names) == 1:
            indices[value] = 1
        elif name in names:
            indices[value] = names.index(name) + 1
    return tuple(indices)


@dataclass(frozen=True)
class AnnotatedClasses(RenderedMask):
    """True classes, from annotations.

    Args:
        source: renders their mask values.
        name: the annotated image.
        index_by_value: for each mask value, the model's index of its class, `IGNORE_INDEX` if it is ignored.
        unknown: the names of the values that are no classes of the model.
    """

    source: RenderedMask
    name: str
    index_by_value: tuple[int, ...]
    unknown: tuple[tuple[int, str], ...] = ()

    def render(self) -> np.ndarray:
        """(H, W) uint8 class indices. Raises DataError for a pixel of an unknown class."""
        values = self.source.render()
        for value, name in self.unknown:
            if (values == value).any():
                raise DataError(f"{self.name}: is annotated with {name}, which is no class of the model")
        return np.array(self.index_by_value, np.uint8)[values]

    @classmethod
    def from_names(
        cls, source: RenderedMask, name: str, classes: NamedClasses, class_map: ClassMap
    ) -> "AnnotatedClasses":
        """True classes whose values have the names `classes`; the name does not matter if there is one class."""
        background = class_map.background
        others = [index for index in range(len(class_map)) if index != background]
        objects = [name for _, name in classes if not is_background(name)]
        has_one_class = len(others) == 1 and not set(objects) & set(class_map.names)
        values = [value for value, _ in classes if isinstance(value, int)]
        indices = [IGNORE_INDEX] * (max([IGNORE_INDEX, *values]) + 1)
        unknown = []
        for value, class_name in classes:
            if not isinstance(value, int) or value == IGNORE_INDEX:
                continue
            if class_name in class_map.names:
                index: int | None = class_map.names.index(class_name)
            elif is_background(class_name):
                index = background
            elif has_one_class:
                index = others[0]
            else:
                index = class_map.outside
            if index is None:
                unknown.append((value, class_name))
            else:
                indices[value] = index
        return cls(source, name, tuple(indices), tuple(unknown))
