"""Activation checkpointing: blocks that keep only their inputs, and run again in the backward pass."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


@contextmanager
def recompute_blocks(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """In this context each block that is called runs again in the backward pass (Chen et al. 2016, arXiv:1604.06174).

    Do not compile the blocks.
    """
    for block in blocks:
        forward = partial(type(block).forward, block)
        contexts = partial(_contexts, block)
        block.forward = partial(checkpoint, forward, use_reentrant=False, context_fn=contexts)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _contexts(block: nn.Module) -> tuple[AbstractContextManager, AbstractContextManager]:
    """The contexts of a block's first forward pass and of its second one."""
    return nullcontext(), frozen_statistics(block)


@contextmanager
def frozen_statistics(block: nn.Module) -> Iterator[None]:
    """In this context, batch norm normalizes by its batch and does not update its running statistics again."""
    norms = [module for module in block.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    statistics = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, statistics, strict=True):
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(batches)
