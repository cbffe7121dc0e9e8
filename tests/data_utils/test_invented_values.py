"""Values of masks that only smoothing or lossy compression has made."""

import pytest

from data_utils.class_map import resolve_classes
from data_utils.invented_values import describe_invented


@pytest.mark.parametrize(
    ("pixels", "beginning"),
    [
        ({0: 30, 9: 30} | dict.fromkeys(range(10, 20), 4), "60.0% of the pixels hold 0, 9; the others"),
        ({0: 300, 9: 290} | dict.fromkeys(range(10, 20), 41), "63.1% of the pixels hold 0, 9, 10; the others"),
        ({0: 97, 9: 2, 10: 1}, "99.0% of the pixels hold 0, 9;"),
        ({0: 57, 9: 38, 1: 5}, "100.0% of the pixels hold 0, 1, 9;"),
        ({0: 57, 9: 39, 1: 4}, "96.0% of the pixels hold 0, 9;"),
        (dict.fromkeys(range(8), 12) | {50: 2, 60: 2}, "96.0% of the pixels hold 0, 1, 2, 3, 4, 5, 6, 7; the others"),
    ],
    ids=["two of many", "three of many", "at least two", "a twentieth", "less than a twentieth", "eight of many"],
)
def test_values_of_few_pixels_may_be_invented(pixels, beginning):
    assert describe_invented(pixels).startswith(beginning)


@pytest.mark.parametrize("pixels", [dict.fromkeys(range(20), 5), {0: 5}], ids=["alike", "alone"])
def test_values_of_as_many_pixels_are_not_invented(pixels):
    assert describe_invented(pixels) is None


@pytest.mark.parametrize(
    "values",
    [range(151), range(0, 231, 7), [(value, 0, 0) for value in range(40)]],
    ids=["numbers in a row", "numbers with gaps", "colors"],
)
def test_many_values_are_classes(values):
    assert len(resolve_classes(dict.fromkeys(values, 10), (), None)) == len(values)
