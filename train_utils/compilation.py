"""The compiled parts of training, if the launch profile sets a `dynamo_backend`.

They are the network's blocks, the loss, and the colors of the augmentation.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DynamoBackend

from data_utils.loading.augmentation import Recolor, recolor_images
from tasks.step_loss import StepLoss
from unet.model import UNet


def compiles(accelerator: Accelerator) -> bool:
    """Whether the launch profile sets a backend."""
    return accelerator.state.dynamo_plugin.backend != DynamoBackend.NO


def compile_blocks(accelerator: Accelerator, network: UNet) -> None:
    """Compile the blocks in place, if the launch profile sets a backend; call it before `prepare`.

    A block is compiled anew for each shape: shapes are few, and kernels for fixed ones are faster. With activation
    checkpointing blocks are not compiled: nothing outside knows which tensors a compiled block keeps for its backward
    pass.
    """
    if compiles(accelerator) and not network.activation_checkpointing:
        for block in network.blocks:
            block.compile(**_options(accelerator))


def compile_loss(accelerator: Accelerator, criterion: StepLoss) -> None:
    """Compile the loss in place, if the launch profile sets a backend."""
    if compiles(accelerator):
        criterion.compile(**_options(accelerator))


def compile_recolor(accelerator: Accelerator) -> Recolor:
    """The colors of the augmentation, compiled if the launch profile sets a backend."""
    if not compiles(accelerator):
        return recolor_images
    return torch.compile(recolor_images, **_options(accelerator))


def eager(accelerator: Accelerator) -> AbstractContextManager[Any]:
    """A context in which nothing compiled is used: evaluation has its own shapes, and meets each of them once."""
    return torch.compiler.set_stance("force_eager") if compiles(accelerator) else nullcontext()


@contextmanager
def not_compiled_whole(accelerator: Accelerator) -> Iterator[None]:
    """A context in which `accelerator.prepare` compiles nothing."""
    plugin = accelerator.state.dynamo_plugin
    backend = plugin.backend
    plugin.backend = DynamoBackend.NO
    try:
        yield
    finally:
        plugin.backend = backend


def _options(accelerator: Accelerator) -> dict[str, Any]:
    """The profile's options of `torch.compile`; shapes are static unless it says otherwise."""
    plugin = accelerator.state.dynamo_plugin
    return plugin.to_kwargs() | {"dynamic": bool(plugin.dynamic)}
