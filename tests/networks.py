"""Settings of networks that are as small as can be."""

from unet import UNetConfig

LITE = {"model_type": "efficientnet_lite0", "num_channels": 3}


def tiny(**settings) -> UNetConfig:
    return UNetConfig(**{"in_channels": 1, "base_channels": 2, "depth": 2, **settings})
