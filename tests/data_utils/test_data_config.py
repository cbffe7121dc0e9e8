"""Settings of the data: what each of them means, and what is refused.

Modules: data_utils/config.py.
"""

from types import SimpleNamespace

import pytest

from data_utils.config import DataConfig
from runtime.errors import DataError


@pytest.mark.parametrize(
    ("settings", "may_crop"), [({"crop_size": (4, 4)}, True), ({"plan": "auto"}, True), ({}, False)]
)
def test_crops_are_those_of_the_flag_or_of_a_plan(settings, may_crop):
    assert DataConfig(**settings).may_crop is may_crop


@pytest.mark.parametrize(
    ("settings", "rule"),
    [({"classes": "a,b"}, "background"), ({"classes": "a,b", "outside": "ignore"}, "ignore"), ({}, None)],
)
def test_values_outside_of_classes_that_are_named_are_background(settings, rule):
    assert DataConfig(**settings).outside_rule == rule


@pytest.mark.parametrize(("settings", "errors"), [({}, ()), ({"on_bad_sample": "skip"}, (DataError,))])
def test_errors_are_skipped_on_request(settings, errors):
    assert DataConfig(**settings).skipped_errors == errors


def test_settings_that_are_not_given_have_these_values():
    config = DataConfig()
    assert config.val_fraction == 0.1
    assert config.augment == "basic"
    assert config.seed == 0
    assert config.draft is False


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
