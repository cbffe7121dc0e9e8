"""The receptive field of a network: it decides whether tiles can give the result of the whole image."""

import json
import math
from collections.abc import Sequence
from functools import cache

import torch

from unet.config import UNetConfig
from unet.model import UNet

BLOCKS = 20  # of the pooling grid that a measured network may look to each side: 640 pixels at stride 32
WIDTH = 4  # blocks of the measured images: more than a window of attention has at each level
ROUNDING = 1e-9  # of float64; what a window of attention changes is at least a thousand times as much


def reach(config: UNetConfig) -> tuple[int, ...] | None:
    """How many pixels beyond a block aligned to the pooling grid its logits depend on, rounded up to that grid.

    One number of each axis. None where they depend on the whole image: group and instance norm, bilinear upsampling
    with aligned corners, encoders with such norms or with attention. Else the first and the last pixel of a block are
    followed backwards through the network; with an encoder it is measured.
    """
    if config.norm != "batch" or config.upsample == "bilinear_aligned":
        return None
    if config.encoder is not None:
        measured = _measured_reach(json.dumps(config.encoder), config.depth, config.upsample)
        return None if measured is None else (measured,) * config.dims
    axes = zip(zip(*config.level_kernels, strict=True), zip(*config.level_strides, strict=True), strict=True)
    return tuple(_reach_along(kernels, strides, config.upsample != "transpose") for kernels, strides in axes)


def _reach_along(kernels: Sequence[int], strides: Sequence[int], interpolates: bool) -> int:
    """Along one axis, given the sizes of convolutions at each level, and the factors between them."""
    grid = math.prod(strides)
    convolutions = [2 * (kernel // 2) for kernel in kernels]  # how far the two of a block look
    first, last = 0, grid - 1
    for around, stride in zip(convolutions, strides, strict=False):  # then the coarser level that was upsampled
        around += int(interpolates and stride > 1)  # interpolation looks at a neighbour besides
        first, last = (first - around) // stride, (last + around) // stride
    for around, stride in zip(convolutions[:0:-1], strides[::-1], strict=True):  # then the finer one that was pooled
        first, last = stride * (first - around), stride * (last + around) + stride - 1
    beyond = max(convolutions[0] - first, last + convolutions[0] - (grid - 1))
    return math.ceil(beyond / grid) * grid


@cache
@torch.inference_mode()
def _measured_reach(encoder: str, depth: int, upsample: str) -> int | None:
    """`reach` of a network with this encoder (JSON), found with random weights in seconds.

    NaN in a block of an image shows in all logits that depend on it: no path hides, as it would from a gradient. Then
    an image without its first and last block must have the same logits between: windows of attention move with the
    image's corner, and with them what a pixel sees.
    """
    config, grid = json.loads(encoder), 2**depth
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(0)
        channels = config.get("num_channels", 3)
        network = UNet(UNetConfig(channels, base_channels=2, depth=depth, upsample=upsample, encoder=config)).eval()
        image = torch.rand(1, channels, (2 * BLOCKS + 1) * grid, WIDTH * grid)
    marked = image.clone()
    marked[:, :, BLOCKS * grid : -BLOCKS * grid] = torch.nan
    rows = network(marked).isnan().any(dim=3).any(dim=1)[0]  # (H,)
    touched = rows.view(-1, grid).any(dim=1).nonzero()[:, 0]
    blocks = int((touched - BLOCKS).abs().max())
    if blocks > BLOCKS - 2:  # the images below would have nothing in common
        return None
    network, image, edge = network.double(), image.double(), blocks * grid
    whole, part = network(image)[:, :, grid:-grid], network(image[:, :, grid:-grid])
    difference = (part - whole)[:, :, edge : part.shape[2] - edge].abs().max() / whole.std()
    return edge if difference < ROUNDING else None
