"""Settings of networks that are as small as can be, and weights of which none is a no-op."""

import torch

from unet import Preprocess, UNet, UNetConfig

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


def copying(names: tuple[str, ...], thresholds: tuple[float, ...], **preprocess) -> UNet:
    """A network of volumes whose classes are the levels of brightness between the thresholds, from 0 up."""
    fields = {"class_names": names, "class_values": tuple(range(len(names)))} | preprocess
    network = UNet(UNetConfig(1, len(names), dims=3, base_channels=1, depth=1, preprocess=Preprocess(**fields)))
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if not name.endswith(("running_var", "norm1.weight", "norm2.weight")):
                tensor.zero_()
        for block in (network.stem, network.ups[0].conv):
            for conv in (block.conv1, block.conv2):
                conv.weight[0, 0, 1, 1, 1] = 1  # the voxel itself; what comes from the level below counts 0
        # a line for each class, of which the highest one changes at each threshold
        for index in range(len(names)):
            network.head.conv.weight[index] = index
            network.head.conv.bias[index] = -sum(thresholds[:index])
    return network.eval()
