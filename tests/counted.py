"""FLOPs of equal networks, counted once: counting takes a quarter of a tiny run's time."""

from collections.abc import Callable

from runtime.cache import cached, digest
from unet import UNet


def counted_once(count: Callable[[UNet, int], float]) -> Callable[[UNet, int], float]:
    """`training_flops` that finds in the cache of the tests what another run, or another process, has counted."""

    def remembered(network: UNet, channels: int) -> float:
        layers = [(name, parameter.shape, parameter.requires_grad) for name, parameter in network.named_parameters()]
        key = digest("flops", str(network.config), type(network).__name__, layers, channels)
        return cached(key, lambda: count(network, channels))

    return remembered
