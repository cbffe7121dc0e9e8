"""Blocks that run once again in the backward pass: gradients, statistics, and what an error leaves behind."""

import pytest
import torch
from support.networks import tiny
from torch import nn

from unet import UNet, UNetConfig
from unet.blocks import frozen_statistics, recompute_blocks


def test_statistics_are_frozen_until_an_error():
    block = nn.Sequential(nn.BatchNorm2d(2, momentum=0.3), nn.BatchNorm2d(2, momentum=None))
    block(torch.rand(4, 2, 3, 3))
    before = {name: value.clone() for name, value in block.state_dict().items()}
    with pytest.raises(ZeroDivisionError), frozen_statistics(block):
        block(torch.rand(4, 2, 3, 3))
        raise ZeroDivisionError
    assert [norm.momentum for norm in block] == [0.3, None]
    assert all(value.equal(before[name]) for name, value in block.state_dict().items())


def test_a_block_that_runs_again_drops_the_same_values():
    block = nn.Dropout(0.5)
    values = torch.ones(1000, requires_grad=True)
    with recompute_blocks([block]):
        kept = block(values)
    kept.sum().backward()
    assert values.grad.equal(kept.detach())


@pytest.mark.parametrize("is_deep", [False, True])
def test_blocks_run_twice_in_training_alone(is_deep):
    network = UNet(tiny(depth=3), deep_supervision=is_deep).train()
    network.activation_checkpointing = True
    calls: list[nn.Module] = []
    inner = [next(block.children()) for block in network.blocks]
    for layer in inner:
        layer.register_forward_pre_hook(lambda layer, inputs: calls.append(layer))
    outputs = network(torch.rand(1, 1, 16, 16))
    (outputs[0] if is_deep else outputs).sum().backward()
    assert [*map(calls.count, inner)] == [2] * 7
    calls.clear()
    network.eval()(torch.rand(1, 1, 16, 16)).sum().backward()
    assert [*map(calls.count, inner)] == [1] * 7


@pytest.mark.parametrize(
    ("norm", "size"),
    [("batch", (40, 48)), ("group", (40, 48)), ("batch", (8, 16, 24))],
    ids=["batch", "group", "batch, volumes"],
)
def test_activation_checkpointing_keeps_gradients_with_running_statistics(norm, size):
    results = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        network = UNet(UNetConfig(base_channels=4, depth=3, norm=norm, dropout=0.2, dims=len(size))).double().train()
        network.activation_checkpointing = checkpointing
        for _ in range(2):
            images = torch.rand(2, 3, *size, dtype=torch.float64)
            network(images).square().mean().backward()
        results.append((network, [parameter.grad for parameter in network.parameters()]))
    (plain, gradients), (checkpointed, recomputed) = results
    for ours, theirs in zip(recomputed, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)  # float64: measured 0
    for name, value in plain.state_dict().items():
        assert torch.equal(value, checkpointed.state_dict()[name]), name
