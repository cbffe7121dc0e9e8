"""Targets of classes: their reader, and the weights of classes.

Modules: data_utils/targets/classes.py.
"""

import numpy as np
import pytest

from data_utils.class_map import ClassMap
from data_utils.targets.classes import ClassReader, PartlyLabeledReader, class_weight_tensor
from data_utils.targets.label_sets import LabelSets

BY_A = LabelSets(((True, True), (True, False)), {("a",): 1})
TWO = ClassMap(("a", "b"), (1, 2), None)


def test_a_reader_of_classes_describes_what_is_ignored_and_shows_what_is_known():
    reader = ClassReader(ClassMap(("a", "b"), (1, 2), 0))
    assert reader.describe() == "classes 1=a, 2=b, ignored 0"
    assert ClassReader(TWO).describe() == "classes 1=a, 2=b"
    partly = PartlyLabeledReader(TWO, label_sets=BY_A)
    target = partly.of_record(partly.of_mask(np.array([[1, 2]]), "mask"), {"labeled": ("a",)})
    assert partly.shown_truth(target).tolist() == [[0, 255]] and target.mask.tolist() == [[0, 1]]
    whole = partly.of_record(partly.of_mask(np.array([[1, 2]]), "mask"), {})
    assert partly.shown_truth(whole).tolist() == [[0, 1]]


def test_names_of_classes_do_not_matter_to_what_is_kept():
    assert ClassReader(TWO).key == ClassReader(ClassMap(("x", "y"), (1, 2), None)).key


def test_no_class_weights_are_asked_for_in_two_ways():
    assert class_weight_tensor(None, (1, 2)) is class_weight_tensor(["none"], (1, 2)) is None
    assert class_weight_tensor(["auto"], (0, 30, 10)).tolist() == pytest.approx([1, (4 / 9) ** 0.5, (4 / 3) ** 0.5])
