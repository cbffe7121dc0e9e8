"""The receptive field of a network: it decides whether tiles can give the result of the whole image."""

import json
import math
from collections.abc import Sequence
from functools import cache

import torch

from unet.config import UNetConfig
from unet.model import UNet

BLOCKS = 20  # the largest measured reach, in blocks of the pooling grid: 640 pixels at stride 32
WIDTH = 4  # width of the measured images, in blocks: more than a window of attention at each level
ROUNDING = 1e-9  # errors of float64; a window of attention causes differences at least a thousand times as large


def reach(config: UNetConfig) -> tuple[int, ...] | None:
    """How far beyond a block of the pooling grid the block's logits depend on pixels, rounded up to that grid.

    There is one number for each axis. Returns None if the logits depend on the whole image: with group and
    instance norm, bilinear upsampling with aligned corners, encoders with such norms or with attention. Else the first
    and the last pixel of a block are followed backwards through the network; with an encoder the reach is measured.
    """
    if config.norm != "batch" or config.upsample == "bilinear_aligned":
        return None
    if config.encoder is not None:
        encoder = json.dumps(config.encoder)
        side_reach = _measured_reach(encoder, config.depth, config.upsample, config.output_stride)
        if side_reach is None:
            return None
        return (side_reach,) * config.dims
    interpolates = config.upsample != "transpose"
    kernels_by_axis = zip(*config.level_kernels, strict=True)
    strides_by_axis = zip(*config.level_strides, strict=True)
    reaches = []
    for kernels, strides in zip(kernels_by_axis, strides_by_axis, strict=True):
        reaches.append(_reach_along(kernels, strides, interpolates))
    return tuple(reaches)


def _reach_along(kernels: Sequence[int], strides: Sequence[int], interpolates: bool) -> int:
    """The reach along one axis, given the sizes of convolutions at each level, and the factors between levels."""
    grid = math.prod(strides)
    convolutions = [2 * (kernel // 2) for kernel in kernels]  # the reach of the two convolutions of a block
    first = 0
    last = grid - 1
    # from each level of the decoder to the coarser level that was upsampled to it
    for around, stride in zip(convolutions, strides, strict=False):
        around += int(interpolates and stride > 1)  # interpolation also reads a neighbor
        first = (first - around) // stride
        last = (last + around) // stride
    # then from each level of the encoder to the finer level that was pooled to it
    for around, stride in zip(convolutions[:0:-1], strides[::-1], strict=True):
        first = stride * (first - around)
        last = stride * (last + around) + stride - 1
    beyond = max(convolutions[0] - first, last + convolutions[0] - (grid - 1))
    return math.ceil(beyond / grid) * grid


@cache
@torch.inference_mode()
def _measured_reach(encoder: str, depth: int, upsample: str, output_stride: int) -> int | None:
    """`reach` of a network with this encoder (JSON), found with random weights in seconds.

    NaN in a block of an image shows in all logits that depend on the block; a gradient could miss a path. Then an image
    without its first and last block must have the same logits in between, or the result is None: windows of attention
    move with the image's corner, and so a pixel depends on other pixels.
    """
    config = json.loads(encoder)
    grid = 2**depth
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(0)
        channels = config.get("num_channels", 3)
        small = UNetConfig(
            channels, base_channels=2, depth=depth, upsample=upsample, encoder=config, output_stride=output_stride
        )
        network = UNet(small).eval()
        image = torch.rand(1, channels, (2 * BLOCKS + 1) * grid, WIDTH * grid)
    marked_image = image.clone()
    marked_image[:, :, BLOCKS * grid : -BLOCKS * grid] = torch.nan
    rows = network(marked_image).isnan().any(dim=3).any(dim=1)[0]  # (H,)
    touched = rows.view(-1, grid).any(dim=1).nonzero()[:, 0]
    blocks = int((touched - BLOCKS).abs().max())
    if blocks > BLOCKS - 2:  # the images below would have no valid part in common
        return None
    edge = blocks * grid
    network = network.double()
    image = image.double()
    whole = network(image)[:, :, grid:-grid]
    trimmed = network(image[:, :, grid:-grid])
    difference = (trimmed - whole)[:, :, edge : trimmed.shape[2] - edge].abs().max() / whole.std()
    return edge if difference < ROUNDING else None
