"""How predicted classes are written and shown: values, colors, legend.

Modules: inference/outputs/classes.py.
"""

import numpy as np
import pytest

from data_utils.class_map import ClassMap
from data_utils.visualize import outlined_overlay
from inference.outputs import new_format
from inference.outputs.classes import ClassFormat
from runtime.errors import ImageError
from unet.config import Preprocess, UNetConfig

CLASSES = ClassMap(("sky", "land", "sea"), (10, 200, 255), None)


ROWS = np.array([[0, 1], [2, 0]], np.uint8)
FORMAT = ClassFormat(CLASSES)
WIDE_FORMAT = ClassFormat(ClassMap(("a", "b"), (0, 300), None))
COLOR_FORMAT = ClassFormat(ClassMap(("a", "b"), ((1, 2, 3), (4, 5, 6)), None))


@pytest.mark.parametrize(
    ("output_format", "values", "dtype"),
    [
        (FORMAT, [[10, 200], [255, 10]], np.uint8),
        (WIDE_FORMAT, [[0, 300], [0, 0]], np.uint16),
        (COLOR_FORMAT, [[[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [1, 2, 3]]], np.uint8),
    ],
    ids=["8 bits", "16 bits", "colors"],
)
def test_classes_are_written_as_the_values_that_they_had(output_format, values, dtype):
    masks = output_format.mask_values(ROWS % len(output_format.names))
    assert masks.tolist() == values
    assert masks.dtype == dtype


def test_classes_are_shown_in_a_color_each():
    assert FORMAT.shades(ROWS) is ROWS
    assert FORMAT.names == CLASSES.names
    assert len(FORMAT.colors) == 3
    image = np.full((2, 2, 3), 90, np.uint8)
    assert np.array_equal(FORMAT.overlay(image, ROWS), outlined_overlay(image, ROWS, FORMAT.colors))


def test_classes_of_colors_are_shown_in_their_own():
    assert COLOR_FORMAT.colors.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_the_legend_of_classes_has_a_line_for_each():
    assert np.asarray(FORMAT.legend()).shape[0] == 3 * 20


def test_entries_of_the_legend_say_the_share_of_each_class():
    entries = FORMAT.legend_entries(np.array([[0, 0, 1], [1, 0, 0]], np.uint8))
    assert [entry.text for entry in entries] == ["sky 66.7%", "land 33.3%", "sea 0.0%"]
    assert [entry.color for entry in entries] == [tuple(color) for color in FORMAT.colors.tolist()]


def test_a_volume_holds_classes_of_numbers():
    FORMAT.check_volume("v")


def test_a_volume_of_classes_of_colors_is_refused():
    with pytest.raises(ImageError, match="v: the model's classes are colors, which the mask of a volume cannot hold"):
        COLOR_FORMAT.check_volume("v")


@pytest.mark.parametrize(
    ("output_format", "number", "properties"),
    [(COLOR_FORMAT, 2, {"class": "b", "value": "#040506"}), (FORMAT, 1, {"class": "sky", "value": 10})],
    ids=["colors", "numbers"],
)
def test_areas_of_a_class_have_its_name_beside_its_value(output_format, number, properties):
    assert output_format.area_properties(0, number, None) == properties


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
    (found,) = ClassFormat(ClassMap(names, (0, 1, 2), None)).areas(ROWS)
    assert found.tolist() == areas


def test_a_model_says_how_its_predictions_are_written():
    preprocess = Preprocess(class_names=("a", "b"), class_values=(3, 9))
    output_format = new_format(UNetConfig(num_classes=2, preprocess=preprocess))
    assert output_format.mask_values(np.array([[0, 1]])).tolist() == [[3, 9]]
