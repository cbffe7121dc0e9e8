"""Masks of classes: in the values or colors that the model was trained on."""

from collections.abc import Iterator

import numpy as np

from data_utils.class_map import ClassMap
from data_utils.class_names import is_background
from data_utils.image_io.dicom.write import Regions
from data_utils.image_io.formats import Segments
from data_utils.mask_values import value_text
from runtime.errors import ImageError
from tasks.classes.reader import ClassReader
from tasks.classes.show import ClassSection
from tasks.polygons import Areas, Properties
from tasks.prediction import Prediction
from tasks.prediction_format import MaskFormat


class ClassFormat(MaskFormat):
    """The mask value of each class."""

    reader: ClassReader

    def __init__(self, section: ClassSection) -> None:
        super().__init__(section)
        self.written_values = self.reader.class_map.values
        self.segments = segments_of(self.reader.class_map)

    def mask_values(self, labels: np.ndarray) -> np.ndarray:
        if labels.ndim == 3 and self.reader.class_map.has_colors:
            raise ImageError("the model's classes are colors, which the mask of a volume cannot hold")
        return self.reader.class_map.decode(labels)

    def areas(self, prediction: Prediction) -> Iterator[Areas]:
        class_map = self.reader.class_map
        numbers = np.arange(1, len(class_map) + 1, dtype=np.uint8)
        properties: list[Properties] = []
        for index, (name, value) in enumerate(zip(class_map.names, class_map.values, strict=True)):
            if is_background(name):
                numbers[index] = 0
            properties.append({"class": name, "value": value if isinstance(value, int) else value_text(value)})
        yield Areas(numbers[prediction.labels], properties)

    def regions(self, labels: np.ndarray) -> Regions:
        class_map = self.reader.class_map
        chosen = [index for index in range(len(class_map)) if index != class_map.background]
        numbers = np.zeros(len(class_map), np.uint8)
        numbers[chosen] = np.arange(1, len(chosen) + 1)
        names = [class_map.names[index] for index in chosen]
        return Regions(names, self.section.colors[chosen].tolist(), numbers[labels], are_bits=False)


def segments_of(class_map: ClassMap) -> Segments | None:
    """The mask value of each class but the background; None if values are colors."""
    segments: list[tuple[str, int]] = []
    outside = 0
    for index, (name, value) in enumerate(zip(class_map.names, class_map.values, strict=True)):
        if not isinstance(value, int):
            return None
        if index == class_map.background:
            outside = value
        else:
            segments.append((name, value))
    return Segments(tuple(segments), outside=outside)
