"""Settings of the data: what each of them means, and what is refused.

Modules: data_utils/config.py.
"""

from types import SimpleNamespace

from data_utils.config import DataConfig
from runtime.errors import DataError


def test_what_a_setting_of_the_data_means():
    assert DataConfig(crop_size=(4, 4)).may_crop
    assert DataConfig(plan="auto").may_crop
    assert not DataConfig().may_crop
    assert DataConfig(classes="a,b").outside_rule == "background"
    assert DataConfig(classes="a,b", outside="ignore").outside_rule == "ignore"
    assert DataConfig().outside_rule is None
    assert DataConfig().skipped_errors == ()
    assert DataConfig(on_bad_sample="skip").skipped_errors == (DataError,)
    config = DataConfig()
    assert config.val_fraction == 0.1
    assert config.augment == "basic"
    assert config.seed == 0
    assert config.draft is False
    flags = vars(DataConfig(image_size=[4, 5], spacing=[1, 2, 3], crop_size=[2, 2], fold="2/5", bands=["3", "1"]))
    read = DataConfig.from_args(SimpleNamespace(**flags))
    assert read.image_size == (4, 5)
    assert read.spacing == (1, 2, 3)
    assert read.crop_size == (2, 2)
    assert read.fold == (2, 5)
    assert read.bands == ("3", "1")
    decided = DataConfig.from_args(SimpleNamespace(**vars(DataConfig(place=False, val_blocks=0, val_fraction=0.0))))
    assert decided.place is False  # 0 and False are decisions
    assert decided.val_blocks == 0
    assert decided.val_fraction == 0
