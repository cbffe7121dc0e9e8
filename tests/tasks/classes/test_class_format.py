"""How predicted classes are written: values, and areas with their names.

Modules: tasks/classes/write.py.
"""

import numpy as np
import pytest
from support.formats import class_format

from runtime.errors import ImageError
from tasks.prediction import Prediction

ROWS = np.array([[0, 1], [2, 0]], np.uint8)
FORMAT = class_format(("sky", "land", "sea"), (10, 200, 255))
COLOR_FORMAT = class_format(("a", "b"), ((1, 2, 3), (4, 5, 6)))


@pytest.mark.parametrize(
    ("output_format", "values", "dtype"),
    [
        (FORMAT, [[10, 200], [255, 10]], np.uint8),
        (class_format(("a", "b"), (0, 300)), [[0, 300], [0, 0]], np.uint16),
        (COLOR_FORMAT, [[[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [1, 2, 3]]], np.uint8),
    ],
    ids=["8 bits", "16 bits", "colors"],
)
def test_classes_are_written_as_the_values_that_they_had(output_format, values, dtype):
    masks = output_format.mask_values(ROWS % len(output_format.section.names))
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
    (found,) = class_format(names, (0, 1, 2)).areas(Prediction(ROWS))
    assert found.numbers.tolist() == areas
