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


def test_settings_are_read_from_the_flags_of_a_record():
    flags = {"image_size": [4, 5], "spacing": [1, 2, 3], "fold": "2/5", "place": None, "val_blocks": 0, "epochs": 3}
    config = DataConfig.from_flags(flags)
    assert config == DataConfig(image_size=(4, 5), spacing=(1.0, 2.0, 3.0), fold="2/5", val_blocks=0)
    assert config.chosen_fold == (2, 5)
    assert config.reads_places
    assert not DataConfig(place=False).reads_places
