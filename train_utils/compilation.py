"""The compiled parts of training, if the launch profile sets a `dynamo_backend` or the run is long (`kernel_tuning`).

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
from train_utils.sync_batchnorm import SynchronizedBatchNorm
from unet.model import UNet

NO_GRAPHS = {"mode": "default"}  # a CUDA graph writes over the results of its last call, which a step still needs


def compiles(accelerator: Accelerator) -> bool:
    """Whether the launch profile, or `compile_long_run`, sets a backend."""
    return accelerator.state.dynamo_plugin.backend != DynamoBackend.NO


def compile_blocks(accelerator: Accelerator, network: UNet) -> None:
    """Compile the blocks in place; call it before `prepare`.

    A block is compiled anew for each shape: shapes are few, and kernels for fixed ones are faster. With activation
    checkpointing blocks are not compiled: nothing outside knows which tensors a compiled block keeps for its backward
    pass.
    """
    if not compiles(accelerator) or network.activation_checkpointing:
        return
    for module in network.modules():
        if isinstance(module, SynchronizedBatchNorm):  # the compiler cannot trace its exchange (torch 2.13)
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]
    for block in network.blocks:
        block.compile(**_options(accelerator))


def compile_loss(accelerator: Accelerator, criterion: StepLoss) -> None:
    """Compile the loss in place."""
    if compiles(accelerator):
        criterion.compile(**_options(accelerator) | NO_GRAPHS)


def compile_recolor(accelerator: Accelerator) -> Recolor:
    """The colors of the augmentation, compiled too."""
    if not compiles(accelerator):
        return recolor_images
    return torch.compile(recolor_images, **_options(accelerator) | NO_GRAPHS)


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
