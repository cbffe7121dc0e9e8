"""Weights of classes in the loss, and the pixels they are counted from.

Module: data_utils/targets/classes.py.
"""

import pytest
import torch

from data_utils.class_map import ClassMap
from data_utils.targets.classes import class_weight_tensor, count_classes
from runtime.errors import SettingsError


def test_automatic_class_weights_are_the_root_of_the_inverse_frequencies():
    weights = class_weight_tensor(["auto"], [900, 90, 10])
    # float32: measured 9e-8
    torch.testing.assert_close(weights**2 * torch.tensor([900, 90, 10]), torch.full((3,), 1000 / 3), rtol=5e-7, atol=0)


def test_a_class_without_pixels_weighs_1():
    assert class_weight_tensor(["auto"], [30, 0, 10])[1] == 1
    assert class_weight_tensor(["auto"], [0, 0]).tolist() == [1, 1]


def test_black_of_a_mask_without_colors_counts_for_the_class_that_is_black():
    class_map = ClassMap(("ground", "car", "road"), ((0, 0, 0), (255, 0, 0), (9, 9, 9)), None)
    assert count_classes({(255, 0, 0): 4, 0: 6, (9, 9, 9): 5}, class_map) == (6, 4, 5)


def test_class_weights_are_as_typed():
    assert class_weight_tensor([1.0, 2.0], [10, 10]).tolist() == [1.0, 2.0]


def test_classes_have_no_weights_where_none_are_asked_for():
    assert class_weight_tensor(["none"], [10, 10]) is None


def test_class_weights_must_be_one_for_each_class():
    with pytest.raises(SettingsError, match="3 values for 2 classes"):
        class_weight_tensor([1.0, 2.0, 3.0], [10, 10])


@pytest.mark.parametrize("word", ["auto", "none"])
def test_a_word_among_class_weights_is_refused(word):
    with pytest.raises(SettingsError, match="2 values for 2 classes"):
        class_weight_tensor([word, 1.0], [10, 10])
