"""The receptive field of a network: it decides whether tiles can give the result of the whole image."""

import json
from dataclasses import replace
from functools import cache

import torch

from unet.config import Preprocess, UNetConfig
from unet.model import UNet

BLOCKS = 20  # the largest measured reach of an encoder, in blocks of the pooling grid: 640 pixels at stride 32
WIDTH = 4  # width of the measured images, in blocks: more than a window of attention at each level
ROUNDING = 1e-9  # errors of float64; a window of attention causes differences at least a thousand times as large


def reach(config: UNetConfig) -> tuple[int, ...] | None:
    """How far beyond a block of the pooling grid the block's logits depend on pixels, rounded up to that grid.

    There is one number for each axis. Returns None if the logits depend on the whole image: with group and instance
    norm, bilinear upsampling with aligned corners, encoders with such norms or with attention.
    """
    if config.norm != "batch" or config.upsample == "bilinear_aligned":
        return None
    narrow = replace(config, preprocess=Preprocess(), task=None)
    narrow = replace(narrow, in_channels=config.network_channels, num_classes=1, base_channels=2)
    reaches = []
    for axis in range(config.dims):
        if config.encoder is None:  # images suffice for volumes too, and a network that sees nothing beside the axis
            kernels = tuple((kernel[axis], 1) for kernel in config.level_kernels)
            strides = tuple((stride[axis], 1) for stride in config.level_strides)
            narrow = replace(narrow, dims=2, kernels=kernels, strides=strides)
        reaches.append(_measured_reach(json.dumps(narrow.to_json())))
    return None if None in reaches else tuple(reaches)


@cache
@torch.inference_mode()
def _measured_reach(config_json: str) -> int | None:
    """The `reach` of a network along the first axis of images, found with random weights.

    NaN in a block of an image shows in all logits that depend on the block; a gradient could miss a path. Then an image
    without its first and last block must have the same logits in between, or the result is None: windows of attention
    move with the image's corner, and so a pixel depends on other pixels.
    """
    config = UNetConfig.from_json(json.loads(config_json))
    # without an encoder each level adds at most two convolutions down, two up, and an interpolation
    blocks = BLOCKS if config.encoder else 5 * config.depth + 5
    grid, across = config.divisors
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(0)
        network = UNet(config).double().eval()
        image = torch.rand(1, config.in_channels, (2 * blocks + 1) * grid, WIDTH * across, dtype=torch.float64)
    marked_image = image.clone()
    marked_image[:, :, blocks * grid : -blocks * grid] = torch.nan
    is_touched = network(marked_image).isnan()[0, 0].any(dim=1)  # (H,)
    touched = is_touched.view(-1, grid).any(dim=1).nonzero()[:, 0]
    reached = int((touched - blocks).abs().max())
    if reached > blocks - 2:  # the images below would have no valid part in common
        return None
    edge = reached * grid
    whole = network(image)[:, :, grid:-grid]
    trimmed = network(image[:, :, grid:-grid])
    difference = (trimmed - whole)[:, :, edge : trimmed.shape[2] - edge].abs().max()
    return edge if difference <= ROUNDING * whole.std() else None
