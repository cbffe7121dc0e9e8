"""Targets of classes: their reader, and the weights of classes.

Modules: tasks/classes/reader.py.
"""

import numpy as np
import pytest

from data_utils.class_map import ClassMap
from data_utils.config import DataConfig
from data_utils.targets.label_sets import LabelSets
from runtime.errors import SettingsError
from tasks.classes.reader import ClassReader
from tasks.losses import class_weight_tensor

BY_A = LabelSets(((True, True), (True, False)), {("a",): 1})
TWO = ClassMap(("a", "b"), (1, 2), None)


@pytest.mark.parametrize(
    ("record", "shown"), [({"labeled": ("a",)}, [[0, 255]]), ({}, [[0, 1]])], ids=["of one class", "of all"]
)
def test_a_truth_is_shown_where_an_image_is_labeled(record, shown):
    partly = ClassReader(TWO, label_sets=BY_A)
    target = partly.target_for_record(partly.target_from_mask(np.array([[1, 2]]), "mask"), record)
    assert partly.shown_truth(target).tolist() == shown
    assert target.mask.tolist() == [[0, 1]]


def test_an_image_that_is_labeled_for_nothing_is_unknown():
    partly = ClassReader(TWO, label_sets=LabelSets(((True, True), (False, False)), {(): 1}))
    read = partly.target_from_mask(np.array([[1, 2]]), "mask")
    target = partly.target_for_record(read, {"labeled": ()})
    assert target.mask.tolist() == [[255, 255]]
    assert int(target.label_set) == 1
    assert read.mask.tolist() == [[0, 1]]
    assert partly.describe() == "classes 1=a, 2=b, some images labeled for some of these only ()"


def test_pixels_of_a_class_are_those_of_all_its_values_and_of_no_ignored_ones():
    class_map = ClassMap(("a", "b"), (1, 2), 9, joined=((3, 0), (4, 255)))
    assert ClassReader(class_map).with_pixels({None: {1: 5, 2: 7, 3: 2, 4: 100, 9: 100, 77: 100}}).class_pixels == (
        7,
        7,
    )


def test_a_class_may_be_labeled_by_the_name_that_the_data_set_gives_its_value():
    pixels = {None: {1: 5, 2: 7}, ("liver",): {1: 10, 2: 20}}
    reader = ClassReader(TWO).partly_labeled({("liver",): "classes.csv"}, ((2, "liver"),)).with_pixels(pixels)
    assert reader.labeled_classes(("liver",)) == [1]
    assert reader.class_pixels == (5, 27)


def test_classes_that_do_not_overlap_have_no_sides():
    with pytest.raises(SettingsError, match=r"^--swap a=b: for points and for classes that may overlap; leave it out$"):
        ClassReader.from_records(None, {1: 5, 2: 5}, ((1, "a"), (2, "b")), DataConfig(swap="a=b"))


@pytest.mark.parametrize("weights", [["none", "none"], ["auto", 1.0], [1.0], [1.0, 2.0, 3.0], []])
def test_class_weights_are_as_many_as_classes(weights):
    assert class_weight_tensor([1.5, 2.0], (1, 2)).tolist() == [1.5, 2]
    with pytest.raises(SettingsError, match=f"^--class-weights has {len(weights)} values for 2 classes; give `auto`"):
        class_weight_tensor(weights, (1, 2))


def test_a_class_without_pixels_weighs_1():
    assert class_weight_tensor(["auto"], [30, 0, 10])[1] == 1
    assert class_weight_tensor(["auto"], [0, 0]).tolist() == [1, 1]


def test_black_of_a_mask_without_colors_counts_for_the_class_that_is_black():
    class_map = ClassMap(("ground", "car", "road"), ((0, 0, 0), (255, 0, 0), (9, 9, 9)), None)
    assert ClassReader(class_map).with_pixels({None: {(255, 0, 0): 4, 0: 6, (9, 9, 9): 5}}).class_pixels == (6, 4, 5)


def test_colors_of_classes_are_printed_as_they_are_typed():
    colors = ClassMap(("leaf", "spot"), ((0, 255, 0), (255, 0, 0)), (128, 128, 128))
    assert ClassReader(colors).describe_classes() == "classes #00ff00=leaf, #ff0000=spot, ignored #808080"
