"""Sets of classes that images are labeled for: which of them lack classes, and names that are no classes.

Modules: data_utils/targets/label_sets.py, data_utils/analysis/label_sets.py.
"""

import pytest
from support.inspections import split_of

from data_utils.analysis.inspection import Inspection
from data_utils.analysis.label_sets import label_set_warnings, read_labels
from data_utils.class_map import ClassMap
from data_utils.targets.label_sets import LabelSets
from runtime.errors import DataError


def test_the_first_place_with_a_set_that_lacks_classes_is_named():
    sets = LabelSets.from_names({("a", "b"): "whole", ("a",): "half", ("b",): "rest"}, ("a", "b"), ((1,), (2,)), ())
    assert sets.location == "half"
    assert sets.numbers[("a", "b")] == 0
    assert not sets.are_complete


def test_a_set_of_all_classes_is_complete():
    assert LabelSets.from_names({("a", "b"): "whole"}, ("a", "b"), ((1,), (2,)), ()).are_complete


def test_a_wrong_name_is_shown_with_eight_classes_and_in_eighty_characters():
    names = [f"class {number}" for number in range(9)]
    values = [(number,) for number in range(9)]
    with pytest.raises(DataError) as error:
        LabelSets.from_names({("z" * 99,): "here"}, names, values, ())
    listed = ", ".join(names[:8])
    assert str(error.value) == f"here: no class is called {'z' * 80!r}; the classes are {listed}, ..."


def test_an_image_is_labeled_for_a_joined_class_if_it_is_for_each_of_its_values():
    sets = [("a",), ("a", "b"), ("both",), ("1", "2"), ("1", "bee"), ("1", "rest"), ("3",)]
    file_classes = ((1, "a"), (2, "b"), (3, "c"), (2, "bee"))
    label_sets = LabelSets.from_names(dict.fromkeys(sets, "here"), ("both", "rest"), ((1, 2), (3,)), file_classes)
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
        LabelSets.from_names({("livre",): "a.csv"}, ("liver", "lung"), ((1,), (2,)), ())
    assert str(error.value) == "a.csv: no class is called 'livre'; the classes are liver, lung; did you mean liver?"


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
        (("car", "cat", "dog"), (True, True, True)),
        (("bird", "car"), CAR),
    ],
    ids=str,
)
def test_names_are_those_of_classes_or_values_or_of_the_data_set(names, flags):
    assert sets_of({("car",): "a", names: "b"}, CLASS_MAP, FILE_CLASSES).flags_of(names) == flags


def test_an_image_without_a_set_is_labeled_for_all_classes():
    assert sets_of({("car",): "a"}, CLASS_MAP, FILE_CLASSES).flags_of(None) == (True, True, True)


def test_the_place_of_the_first_incomplete_set_is_known():
    sets = sets_of({("car", "cat", "dog"): "whole", ("car",): "a", ("pet",): "b"}, CLASS_MAP, FILE_CLASSES)
    assert sets.location == "a"


def test_a_name_of_no_class_is_told_the_classes():
    with pytest.raises(DataError, match="h: no class is called 'brid'; the classes are background, car, pet; did you"):
        sets_of({("background", "brid"): "h"}, CLASS_MAP, FILE_CLASSES)


@pytest.mark.parametrize("names", [(), ("background",), ("background", "car")], ids=str)
def test_the_background_is_unknown_where_a_class_is(names):
    assert sets_of({names: "a"}, CLASS_MAP).flags_of(names)[0] is False


def test_the_background_is_known_where_all_other_classes_are():
    unnamed = ClassMap(("0", "1", "2"), (0, 1, 2), None)
    assert sets_of({("1", "2"): "a"}, unnamed).are_complete


def test_a_first_class_that_is_no_background_is_unknown_where_it_is_not_labeled():
    streets = ClassMap(("road", "car"), (0, 1), None)
    assert sets_of({("car",): "a"}, streets).flags_of(("car",)) == (False, True)


class LabelReader:
    """Stands in for a reader: returns what it is to be labeled with, and its first class alone is labeled."""

    class_names = ("a", "b")
    background = None

    def partly_labeled(self, *arguments):
        return arguments

    def labeled_classes(self, labeled_for):
        return [0]


def test_label_files_of_both_splits_reach_the_reader_with_names_of_classes():
    train = split_of({0: 1, 1: 2}, label_sets={("a",): "train"}, classes=((1, "a"),))
    val = split_of({0: 5}, label_sets={("a",): "val", ("b",): "val"})
    sets, classes, pixels = read_labels(LabelReader(), [train, val])
    assert sets == {("a",): "train", ("b",): "val"}
    assert classes == ((1, "a"),)
    assert pixels == {None: {0: 6, 1: 2}}


def test_a_reader_of_images_without_label_files_stays_as_it_is():
    reader = LabelReader()
    assert read_labels(reader, [split_of({0: 1})]) is reader


def test_classes_without_labeled_images_are_named_where_both_splits_could_be_read():
    split = split_of({0: 1, 1: 2}, label_sets={("a",): "train"})
    assert label_set_warnings([split], LabelReader()) == ()
    assert len(label_set_warnings([split, split], LabelReader())) == 2


def test_a_class_that_one_of_the_images_of_a_split_is_labeled_for_is_not_named():
    inspection, records = split_of({}, {}, label_sets={("a",): "train"})
    for number, name in enumerate("ab"):
        inspection.add(number, Inspection((4, 5), (4, 5), "L", "numbers", {0: 1, 1: 2}), (name,))
    reader = LabelReader()
    reader.labeled_classes = lambda labeled_for: [1] if labeled_for == ("b",) else [0]
    assert label_set_warnings([(inspection, records)] * 2, reader) == ()
