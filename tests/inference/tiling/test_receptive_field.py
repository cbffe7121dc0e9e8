"""How far a network looks along each axis, as NaN in its input shows it.

Modules: inference/tiling/receptive_field.py.
"""

import pytest
import torch

from inference.tiling.receptive_field import reach
from unet import UNet, UNetConfig

FLAT = (1, 3, 3)
CUBE = (3, 3, 3)


def measured_blocks(config: UNetConfig, blocks: int) -> int:
    """How many blocks of the pooling grid to each side of one depend on it, along the first axis of a volume."""
    grid = config.divisors[0]
    sides = [2 * grid for grid in config.divisors[1:]]
    volume = torch.rand(1, 1, (2 * blocks + 1) * grid, *sides)
    volume[:, :, blocks * grid : (blocks + 1) * grid] = torch.nan
    with torch.inference_mode():
        logits = UNet(config).eval()(volume)
    touched = logits.isnan().flatten(3).any(dim=3).any(dim=1)[0].view(-1, grid).any(dim=1).nonzero()[:, 0]
    return int((touched - blocks).abs().max())


@pytest.mark.parametrize("upsample", ["transpose", "bilinear"])
@pytest.mark.parametrize(
    ("kernels", "strides"),
    [
        ((FLAT, CUBE, CUBE), ((1, 2, 2), (2, 2, 2))),
        ((FLAT, FLAT, CUBE), ((1, 2, 2), (1, 2, 2))),
        ((CUBE, CUBE, CUBE), ((2, 2, 2), (2, 2, 2))),
    ],
)
def test_the_reach_is_where_the_last_logit_changes(kernels, strides, upsample):
    config = UNetConfig(1, 2, 1, 2, dims=3, kernels=kernels, strides=strides, upsample=upsample)
    assert reach(config)[0] == measured_blocks(config, blocks=14) * config.divisors[0]


def test_reach_of_an_encoder_is_measured_with_the_channels_of_its_own(monkeypatch):
    configs = []

    def refuse(config: UNetConfig) -> None:
        configs.append(config)
        raise NotImplementedError

    monkeypatch.setattr("inference.tiling.receptive_field.UNet", refuse)
    with pytest.raises(NotImplementedError):
        reach(UNetConfig(depth=3, upsample="bilinear", encoder={"num_channels": 5}))
    (config,) = configs
    assert config.in_channels == 5
    assert config.depth == 3
    assert config.upsample == "bilinear"
    assert config.encoder == {"num_channels": 5}
