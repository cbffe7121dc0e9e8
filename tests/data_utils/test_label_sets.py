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
