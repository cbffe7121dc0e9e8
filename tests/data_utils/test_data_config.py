"""Settings of the data: what each of them means, and what is refused.

Modules: data_utils/config.py.
"""

import pytest

from data_utils.config import DataConfig


@pytest.mark.parametrize(
    ("settings", "rule"),
    [({"classes": "a,b"}, "background"), ({"classes": "a,b", "outside": "ignore"}, "ignore"), ({}, None)],
)
def test_values_outside_of_classes_that_are_named_are_background(settings, rule):
    assert DataConfig(**settings).outside_rule == rule


def test_a_fold_is_two_numbers_and_places_are_read_unless_a_flag_forbids_it():
    config = DataConfig(fold="2/5")
    assert config.chosen_fold == (2, 5)
    assert config.reads_places
    assert not DataConfig(place=False).reads_places
