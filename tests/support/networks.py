"""Settings of networks that are as small as can be, and weights of which none is a no-op."""

import torch

from unet import UNet, UNetConfig

LITE = {"model_type": "efficientnet_lite0", "num_channels": 3}


def tiny(**settings) -> UNetConfig:
    return UNetConfig(**{"in_channels": 1, "base_channels": 2, "depth": 2, **settings})


def randomized(model: UNet, seed: int = 0) -> UNet:
    """Random weights and running statistics, so that no layer is a no-op, in float64 and evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.2 + (0.9 if tensor.ndim == 1 else -0.1))
    return model.double().eval()
