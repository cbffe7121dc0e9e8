"""Blocks that run once again in the backward pass: their statistics, and what an error leaves behind."""

import pytest
import torch
from torch import nn

from unet.recompute import frozen_statistics, recomputing


def test_statistics_are_frozen_within_and_put_back_after_an_error_too():
    block = nn.Sequential(nn.BatchNorm2d(2, momentum=0.3), nn.BatchNorm2d(2, momentum=None))
    block(torch.rand(4, 2, 3, 3))
    before = {name: value.clone() for name, value in block.state_dict().items()}
    with pytest.raises(ZeroDivisionError), frozen_statistics(block):
        block(torch.rand(4, 2, 3, 3))
        raise ZeroDivisionError
    assert [norm.momentum for norm in block] == [0.3, None]
    assert all(value.equal(before[name]) for name, value in block.state_dict().items())


def test_blocks_run_once_again_after_an_error_within():
    blocks = [nn.Linear(1, 1), nn.Linear(1, 1)]
    with pytest.raises(ZeroDivisionError), recomputing(blocks):
        assert all("forward" in vars(block) for block in blocks)
        raise ZeroDivisionError
    assert not any("forward" in vars(block) for block in blocks)
