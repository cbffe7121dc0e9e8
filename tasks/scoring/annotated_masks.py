"""True masks from annotations, in the classes of a model."""

from dataclasses import dataclass

import numpy as np

from data_utils.class_map import ClassMap
from data_utils.class_names import NamedClasses, is_background
from data_utils.image_io.formats import RenderedMask
from runtime.errors import DataError
from unet.config import IGNORE_INDEX


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
