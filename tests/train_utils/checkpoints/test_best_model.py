"""The best model of a run on a disk that refuses it for a while.

Module: train_utils/checkpoints/best_model.py.
"""

from pathlib import Path

import pytest
import torch

from train_utils.checkpoints.best_model import BestModel
from unet import UNet, UNetConfig


@pytest.fixture
def network() -> UNet:
    return UNet(UNetConfig(in_channels=1, base_channels=2, depth=1))


@pytest.fixture
def folder(tmp_path) -> Path:
    """The folder of the model, which cannot be made before the one that it lies in."""
    return tmp_path / "gone" / "model"


def test_a_card_may_hold_any_characters(network, folder):
    folder.parent.mkdir()
    BestModel(folder).save(network, "\u00e9 \udcff")
    assert (folder / "README.md").read_text(encoding="utf-8") == "\u00e9 \\udcff"


def test_a_best_model_that_the_disk_refused_is_kept_as_it_was(network, folder):
    before = {name: value.clone() for name, value in network.state_dict().items()}
    best = BestModel(folder)
    assert not best.save(network, "card")
    assert not best.is_saved()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    folder.parent.mkdir()
    assert best.is_saved()
    written = UNet.from_pretrained(folder).state_dict()
    assert all(value.equal(before[name]) for name, value in written.items())
    assert (folder / "README.md").read_text() == "card"
