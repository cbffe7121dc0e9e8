"""What is counted of networks on the meta device, once for equal networks: it takes a third of a tiny run's time."""

from collections.abc import Callable
from dataclasses import replace

from runtime.cache import digest, load_or_compute
from train_utils.monitoring import flops
from unet import Preprocess, UNet


def counted_once(count: Callable[..., float]) -> Callable[..., float]:
    """`count(network, ...)` that finds in the cache of the tests what another run, or another process, has counted."""

    def remembered(network: UNet, *others: object) -> float:
        layers = []
        for name, parameter in network.named_parameters():
            layers.append((name, parameter.shape, parameter.dtype, parameter.requires_grad))
        modes = (network.activation_checkpointing, network.training)
        architecture = replace(network.config, preprocess=Preprocess())  # the same on images of another brightness
        key = digest(count.__name__, type(network).__name__, str(architecture), layers, modes, *others)
        return load_or_compute(key, lambda: count(network, *others))

    return remembered


def count_once() -> None:
    """Have this process look up the FLOPs of a step that were counted before."""
    flops.training_flops = counted_once(flops.training_flops)
