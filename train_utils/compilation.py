"""What is compiled or tuned for the shapes of a run: its network's blocks and loss; kernels of cuDNN.

Blocks are compiled if the launch names a `dynamo_backend`, or if a run on CUDA is long enough to pay for it.
"""

import math
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DynamoBackend

from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import NetworkShapes
from runtime.console import counted, say
from runtime.launch import SHARDING, allow_graphs, launch_names
from tasks.step_loss import StepLoss
from train_utils.settings.train_settings import TrainSettings
from train_utils.sync_batchnorm import SynchronizedBatchNorm
from unet.model import UNet

NO_GRAPHS = {"mode": "default"}  # a CUDA graph writes over the results of its last call, which a step still needs
FEW_SHAPES = 4  # timing a shape takes as long as some tens of steps
ENOUGH_MINUTES = 10  # on a shared H200, timing one shape took 38 s of a run of one minute
# of a step that is not compiled: on an H200 in bf16, 38.7 ms for 16 images of 512 x 512 with 32 channels
PIXEL_SECONDS = 3e-10  # for each pixel and channel of the first level; convolutions of volumes take three times as long
LAUNCH_SECONDS = 0.01  # at least, since the host launches some 750 kernels
SHAPE_SECONDS = 300  # this many pay for compiling a shape, which took 62 s there and saved 28% of each step
EARLY = 20  # a run by the clock has so many epochs: a shape that it meets first at its end would make it late


def tune_kernels(args: TrainSettings, device: torch.device, shapes: NetworkShapes) -> None:
    """Let cuDNN time its kernels for each shape and take the fastest, where images have few shapes and the run is long.

    Call it before the first forward pass, even that of a memory trial: torch keeps the kernel that it has chosen for a
    shape (pytorch issue 45372). The fastest kernel may differ between two runs, so not with --deterministic.
    """
    count = len(np.unique(np.concatenate([shapes.train, shapes.val]), axis=0))
    is_long = not args.max_minutes or args.max_minutes >= ENOUGH_MINUTES
    is_tuned = device.type == "cuda" and not args.deterministic and is_long and count <= FEW_SHAPES
    torch.backends.cudnn.benchmark = is_tuned


def compile_long_run(
    accelerator: Accelerator,
    args: TrainSettings,
    network: UNet,
    batch_split: BatchSplit,
    shapes: NetworkShapes,
) -> None:
    """Have a run on CUDA compiled if it is long enough to pay for that, and its launch names no backend."""
    is_refused = args.deterministic or args.processes_per_volume > 1 or network.activation_checkpointing
    if is_refused or accelerator.distributed_type in SHARDING or not can_compile(accelerator.device):
        return
    if launch_names("ACCELERATE_DYNAMO_BACKEND", "--dynamo", ("dynamo_config", "dynamo_backend")):
        return
    if not compiling_pays(args, network, batch_split, shapes):
        return
    accelerator.state.dynamo_plugin.backend = DynamoBackend.INDUCTOR
    allow_graphs(falls_back=True)
    count = len(np.unique(shapes.train, axis=0))
    say(
        f"compile: the network is compiled for {counted(count, 'size')} of images, about a minute each; not to,"
        " start with accelerate launch --dynamo_backend no"
    )


def compiling_pays(args: TrainSettings, network: UNet, batch_split: BatchSplit, shapes: NetworkShapes) -> bool:
    """Whether a run is faster when it is compiled for all its shapes."""
    config = network.config
    pixels = batch_split.micro_batch_size * math.prod(shapes.largest)
    kernel_seconds = pixels * config.base_channels * PIXEL_SECONDS * 3 ** (config.dims - 2)
    step_seconds = batch_split.accumulation * max(kernel_seconds, LAUNCH_SECONDS)
    epoch_seconds = step_seconds * math.ceil(len(shapes.train) / batch_split.batch_size)
    seconds = (args.epochs or math.inf) * epoch_seconds
    if args.max_steps:
        seconds = args.max_steps * step_seconds
    if args.max_minutes:
        seconds = min(seconds, 60 * args.max_minutes)
        if EARLY * epoch_seconds > 60 * args.max_minutes:
            return False
    count = len(np.unique(shapes.train, axis=0))
    return seconds >= max(60 * ENOUGH_MINUTES, SHAPE_SECONDS * count)


def can_compile(device: torch.device) -> bool:
    """Whether kernels can be compiled for a device: for CUDA, with Triton and a C compiler."""
    if device.type != "cuda":
        return False
    from torch.utils._triton import has_triton  # takes a while

    return has_triton() and any(map(shutil.which, ("cc", "gcc", "clang")))


def compiles(accelerator: Accelerator) -> bool:
    """Whether the launch profile, or `compile_long_run`, sets a backend."""
    return accelerator.state.dynamo_plugin.backend != DynamoBackend.NO


def compile_training(accelerator: Accelerator, network: UNet, criterion: StepLoss) -> None:
    """Compile the blocks of the network and the loss in place; call it before `prepare`.

    They are compiled anew for each shape: shapes are few, and kernels for fixed ones are faster. With activation
    checkpointing blocks are not compiled: nothing outside knows which tensors a compiled block keeps for its backward
    pass.
    """
    if not compiles(accelerator):
        return
    plugin = accelerator.state.dynamo_plugin
    options = plugin.to_kwargs() | {"dynamic": bool(plugin.dynamic)}  # shapes are static unless the profile says so
    criterion.compile(**options | NO_GRAPHS)
    if network.activation_checkpointing:
        return
    for module in network.modules():
        if isinstance(module, SynchronizedBatchNorm):  # the compiler cannot trace its exchange (torch 2.13)
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]
    for block in network.blocks:
        block.compile(**options)


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
