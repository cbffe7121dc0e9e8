"""Sets of classes that images are labeled for: which of them lack classes, and names that are no classes.

Modules: data_utils/targets/label_sets.py.
"""

import pytest

from data_utils.targets.label_sets import LabelSets
from runtime.errors import DataError


def test_the_first_place_with_a_set_that_lacks_classes_is_named():
    sets = LabelSets.of({("a", "b"): "whole", ("a",): "half", ("b",): "rest"}, ("a", "b"), ((1,), (2,)), ())
    assert (sets.where, sets.numbers[("a", "b")], sets.are_complete) == ("half", 0, False)
    assert LabelSets.of({("a", "b"): "whole"}, ("a", "b"), ((1,), (2,)), ()).are_complete


def test_a_wrong_name_is_shown_with_eight_classes_and_in_eighty_characters():
    names = [f"class {number}" for number in range(9)]
    values = [(number,) for number in range(9)]
    with pytest.raises(DataError) as error:
        LabelSets.of({("z" * 99,): "here"}, names, values, ())
    listed = ", ".join(names[:8])
    assert str(error.value) == f"here: no class is called {'z' * 80!r}; the classes are {listed}, ..."


def test_an_image_is_labeled_for_a_joined_class_if_it_is_for_each_of_its_values():
    sets = [("a",), ("a", "b"), ("both",), ("1", "2"), ("1", "bee"), ("1", "rest"), ("3",)]
    file_classes = ((1, "a"), (2, "b"), (3, "c"), (2, "bee"))
    label_sets = LabelSets.of(dict.fromkeys(sets, "here"), ("both", "rest"), ((1, 2), (3,)), file_classes)
    expected = [(False, False), *[(True, False)] * 4, (False, True), (False, True)]
    assert [label_sets.flags_of(names) for names in sets] == expected
    assert label_sets.flags_of(None) == label_sets.flags[0] == (True, True)
    assert label_sets.describe() == ", some images labeled for some of these only (here)"


def test_pixels_of_a_class_are_counted_in_images_that_are_labeled_for_it():
    label_sets = LabelSets(((True, True), (True, False)), {("a",): 1})
    pixels = {None: {0: 3 * 10**9, 1: 2}, ("a",): {0: 10, 1: 20}}
    assert label_sets.class_pixels(pixels, lambda counts: (counts[0], counts[1])) == (3 * 10**9 + 10, 2)


def test_a_name_that_is_nearly_one_of_a_class_is_asked_about():
    with pytest.raises(DataError) as error:
        LabelSets.of({("livre",): "a.csv"}, ("liver", "lung"), ((1,), (2,)), ())
    assert str(error.value) == "a.csv: no class is called 'livre'; the classes are liver, lung; did you mean liver?"
