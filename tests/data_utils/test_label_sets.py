"""Sets of classes that images are labeled for: which of them lack classes, and names that are no classes.

Module: data_utils/targets/label_sets.py.
"""

import pytest

from data_utils.class_map import ClassMap
from data_utils.targets.label_sets import LabelSets

CLASS_MAP = ClassMap(("background", "car", "pet"), (0, 1, 2), None, joined=((3, 2),))
FILE_CLASSES = ((2, "dog"), (3, "cat"), (9, "bird"))  # the last is left out by --classes
CAR, PET, NONE = (False, True, False), (False, False, True), (False, False, False)


def sets_of(names: dict[tuple[str, ...], str], class_map: ClassMap, file_classes=()) -> LabelSets:
    return LabelSets.from_names(names, class_map.names, class_map.values_by_class(), file_classes, class_map.background)


@pytest.mark.parametrize(
    ("names", "flags"),
    [
        (("car",), CAR),
        (("1",), CAR),
        (("pet",), PET),
        (("dog",), NONE),  # a joined class needs all that it joins
        (("cat", "dog"), PET),
        (("2", "3"), PET),
        (("2", "cat"), PET),
        (("car", "cat", "dog"), (True, True, True)),
        (("bird", "car"), CAR),
    ],
    ids=str,
)
def test_names_are_those_of_classes_or_values_or_of_the_data_set(names, flags):
    assert sets_of({("car",): "a", names: "b"}, CLASS_MAP, FILE_CLASSES).flags_of(names) == flags


@pytest.mark.parametrize("names", [(), ("background",), ("background", "car")], ids=str)
def test_the_background_is_unknown_where_a_class_is(names):
    assert sets_of({names: "a"}, CLASS_MAP).flags_of(names)[0] is False
    unnamed = ClassMap(("0", "1", "2"), (0, 1, 2), None)
    assert sets_of({("1", "2"): "a"}, unnamed).flags == ((True, True, True),)
    streets = ClassMap(("road", "car"), (0, 1), None)
    assert sets_of({("car",): "a"}, streets).flags_of(("car",)) == (False, True)
