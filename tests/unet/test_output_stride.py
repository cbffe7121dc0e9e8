"""Networks whose way up ends before the size of the images: their logits are enlarged, and nothing is left unused.

Modules: unet/model.py, unet/config.py, inference/tiling/receptive_field.py.
"""

import pytest
import torch
import torch.nn.functional as F
from support.encoders import network_with, pixels
from support.networks import LITE, randomized

from inference.tiling.planning import choose_tiling
from inference.tiling.receptive_field import reach
from inference.tiling.stream import stream_logits
from unet import UNet, UNetConfig


def lite(stride: int) -> UNetConfig:
    return UNetConfig(3, 2, base_channels=2, depth=5, encoder=LITE, output_stride=stride)


@pytest.mark.parametrize("stride", [2, 4])
def test_logits_are_those_of_the_last_features_enlarged(stride):
    torch.manual_seed(0)
    network = randomized(UNet(lite(stride)))
    small = []
    network.head.register_forward_hook(lambda head, features, logits: small.append(logits))
    images = pixels(1, 3, 64, 96)
    with torch.inference_mode():
        logits = network(images)
        odd_logits = network(images[:, :, :61, :75])
    assert small[0].shape == (1, 2, 64 // stride, 96 // stride)
    assert torch.equal(logits, F.interpolate(small[0], scale_factor=stride, mode="bilinear"))
    assert odd_logits.shape == (1, 2, 61, 75)


def test_coarser_logits_begin_at_the_next_level():
    network = UNet(lite(2), deep_supervision=True).train()
    logits = network(pixels(2, 3, 64, 96))
    assert [tuple(level.shape[2:]) for level in logits] == [(64, 96), (16, 24), (8, 12)]
    assert network.head_strides == ((4, 4), (2, 2))


@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("family", ["resnet", "textnet", "swin", "dinov3_convnext"])
def test_each_weight_has_a_gradient(encoder_folders, family, stride):
    config = network_with(encoder_folders[family]).config
    network = UNet(UNetConfig(**vars(config) | {"output_stride": stride}), deep_supervision=True).train()
    sum(logits.square().mean() for logits in network(pixels(2, 3, 64, 64))).backward()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in trained)


def test_exact_tiles_equal_the_whole_image():
    torch.manual_seed(0)
    config = lite(2)
    network = randomized(UNet(config))
    margin = reach(config)[0]
    height, width = 2 * margin + 3 * 32 + 5, 40
    image = torch.rand(3, height, width, dtype=torch.float64) * 255
    tiling = choose_tiling(config, (height, width), tile_size=2 * margin + 2 * 32)
    assert tiling.exact
    with torch.inference_mode():
        whole = network(image[None])[0]
        strips = stream_logits(network, lambda start, stop: image[:, start:stop], (height, width), tiling, 2**22)
        difference = (torch.cat(list(strips), dim=1) - whole).abs().max()
    assert difference < 1e-12 * whole.std()
