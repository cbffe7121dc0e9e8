"""How predicted classes are written: values, and areas with their names.

Modules: tasks/classes/write.py.
"""

import numpy as np
import pytest

from data_utils.class_map import ClassMap
from runtime.errors import ImageError
from tasks.classes.write import ClassFormat
from tasks.prediction import Prediction

ROWS = np.array([[0, 1], [2, 0]], np.uint8)
FORMAT = ClassFormat(ClassMap(("sky", "land", "sea"), (10, 200, 255), None))
COLOR_FORMAT = ClassFormat(ClassMap(("a", "b"), ((1, 2, 3), (4, 5, 6)), None))


@pytest.mark.parametrize(
    ("output_format", "values", "dtype"),
    [
        (FORMAT, [[10, 200], [255, 10]], np.uint8),
        (ClassFormat(ClassMap(("a", "b"), (0, 300), None)), [[0, 300], [0, 0]], np.uint16),
        (COLOR_FORMAT, [[[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [1, 2, 3]]], np.uint8),
    ],
    ids=["8 bits", "16 bits", "colors"],
)
def test_classes_are_written_as_the_values_that_they_had(output_format, values, dtype):
    masks = output_format.mask_values(ROWS % len(output_format.class_map))
    assert masks.tolist() == values
    assert masks.dtype == dtype


def test_a_volume_of_classes_of_colors_is_refused():
    with pytest.raises(ImageError, match="the model's classes are colors, which the mask of a volume cannot hold"):
        COLOR_FORMAT.mask_values(np.zeros((2, 3, 4), np.uint8))


@pytest.mark.parametrize(
    ("names", "areas"),
    [
        (("sky", "background", "sea"), [[1, 0], [3, 1]]),
        (("sky", "background", "_background_"), [[1, 0], [0, 1]]),
        (("sky", "land", "sea"), [[1, 2], [3, 1]]),
    ],
    ids=["a background", "two", "none"],
)
def test_areas_are_those_of_all_classes_but_the_background(names, areas):
    (found,) = ClassFormat(ClassMap(names, (0, 1, 2), None)).areas(Prediction(ROWS))
    assert found.numbers.tolist() == areas
