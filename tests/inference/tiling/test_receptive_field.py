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
