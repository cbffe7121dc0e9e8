"""The buckets in which DistributedDataParallel adds up gradients, which are the same in a resumed run."""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unet.model import UNet


def rebuild_buckets(model: nn.Module, network: UNet) -> None:
    """Have DDP order the gradients as it does from the second step of a run on; all processes must call it.

    In the first step after its start DDP orders gradients as the parameters are defined, later as they become ready.
    With more than two processes, the order in which a gradient is summed depends on its place in the buckets: a resumed
    run would round its first step differently from a run that was never interrupted. This function therefore makes that
    first step with one backward pass on empty images, and discards its results.

    Args:
        model: the model that accelerate has prepared, not compiled.
        network: the same model, not wrapped.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    size = [2 * divisor for divisor in network.config.divisors]
    logits = model(torch.zeros(1, network.config.in_channels, *size, device=model.device))
    levels = [logits] if isinstance(logits, Tensor) else logits
    torch.stack([level.sum() for level in levels]).sum().backward()
    model.zero_grad()
    for name, buffer in network.named_buffers():
        buffer.copy_(buffers[name])
