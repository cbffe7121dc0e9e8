"""How far a network looks: what decides whether tiles can have the whole image's own result."""

import json
import math
from functools import cache

import torch

from unet.config import UNetConfig
from unet.model import UNet

BLOCKS = 20  # of the pooling grid that a measured network may look to each side: 640 pixels at stride 32
WIDTH = 4  # blocks of the measured images: more than a window of attention has at each level
ROUNDING = 1e-9  # of float64; what a window of attention changes is at least a thousand times as much


def reach(config: UNetConfig) -> int | None:
    """How many pixels beyond a block aligned to the pooling grid its logits depend on, rounded up to that grid.

    None where they depend on the whole image: group and instance norm, bilinear upsampling with aligned corners,
    encoders with such norms or with attention. Else the first and the last pixel of a block are followed backwards
    through the network; with an encoder it is measured.
    """
    if config.norm != "batch" or config.upsample == "bilinear_aligned":
        return None
    if config.encoder is not None:
        return _measured_reach(json.dumps(config.encoder), config.depth, config.upsample)
    grid = 2**config.depth
    neighbour = 0 if config.upsample == "transpose" else 1  # what interpolation looks at besides
    first, last = 0, grid - 1
    for _ in range(config.depth):  # two 3 x 3 convolutions, then the coarser level that was upsampled
        first, last = (first - 2 - neighbour) // 2, (last + 2 + neighbour) // 2
    for _ in range(config.depth):  # two 3 x 3 convolutions, then the finer level that was pooled
        first, last = 2 * (first - 2), 2 * (last + 2) + 1
    beyond = max(2 - first, last + 2 - (grid - 1))
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
