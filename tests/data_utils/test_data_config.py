"""Settings of the data: what each of them means, and what is refused.

Modules: data_utils/config.py.
"""

from types import SimpleNamespace

import pytest

from data_utils.config import DataConfig


@pytest.mark.parametrize(
    ("settings", "rule"),
    [({"classes": "a,b"}, "background"), ({"classes": "a,b", "outside": "ignore"}, "ignore"), ({}, None)],
)
def test_values_outside_of_classes_that_are_named_are_background(settings, rule):
    assert DataConfig(**settings).outside_rule == rule


def test_lists_of_flags_become_tuples():
    flags = vars(DataConfig(image_size=[4, 5], spacing=[1, 2, 3], crop_size=[2, 2], fold="2/5", bands=["3", "1"]))
    config = DataConfig.from_args(SimpleNamespace(**flags))
    assert config.image_size == (4, 5)
    assert config.spacing == (1, 2, 3)
    assert config.crop_size == (2, 2)
    assert config.fold == (2, 5)
    assert config.bands == ("3", "1")


def test_flags_of_0_and_false_are_decisions():
    config = DataConfig.from_args(SimpleNamespace(**vars(DataConfig(place=False, val_blocks=0, val_fraction=0.0))))
    assert config.place is False
    assert config.val_blocks == 0
    assert config.val_fraction == 0
