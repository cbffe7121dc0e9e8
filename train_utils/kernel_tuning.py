"""What a long run on CUDA prepares for each shape of its images: kernels that cuDNN has timed, and compiled blocks."""

import math
import shutil
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DynamoBackend

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading.batch_sampler import BatchSplit, TrainingSampler
from data_utils.loading.loaders import NetworkShapes
from runtime.console import counted, say
from runtime.launch import SHARDING, allow_graphs
from runtime.precision import launch_names
from train_utils.settings.train_settings import TrainSettings
from unet.config import UNetConfig
from unet.model import UNet

FEW_SHAPES = 4  # timing a shape takes as long as some tens of steps
ENOUGH_MINUTES = 10  # on a shared H200, timing one shape took 38 s of a run of one minute
# of a step that is not compiled: on an H200 in bf16, 38.7 ms for 16 images of 512 x 512 with 32 channels
PIXEL_SECONDS = 3e-10  # for each pixel and channel of the first level; convolutions of volumes take three times as long
LAUNCH_SECONDS = 0.01  # at least, since the host launches some 750 kernels
SHAPE_SECONDS = 300  # this many pay for compiling a shape, which took 62 s there and saved 28% of each step
MOST_STEPS = 10_000  # of an epoch are looked at
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
    info: DatasetInfo,
    network: UNet,
    batch_split: BatchSplit,
    shapes: NetworkShapes,
    recorded: dict[str, Any] | None,
) -> None:
    """Have a run on CUDA compiled if it is long enough to pay for that, and its launch names no backend.

    Args:
        recorded: the profile of the run that is resumed or repeated, which is compiled again or not, as it was.
    """
    is_refused = args.deterministic or args.processes_per_volume > 1 or network.activation_checkpointing
    if is_refused or accelerator.distributed_type in SHARDING or not can_compile(accelerator.device):
        return
    if launch_names("ACCELERATE_DYNAMO_BACKEND", "--dynamo", ("dynamo_config", "dynamo_backend")):
        return
    seconds = kernel_seconds(network.config, shapes.largest, batch_split.micro_batch_size)
    step_seconds = batch_split.accumulation * max(seconds, LAUNCH_SECONDS)
    count = pass_shapes(info, batch_split, shapes)
    pays = compiling_pays(args, len(info.train), step_seconds, count)
    if recorded is not None:
        pays = "dynamo_backend" in recorded
    if not pays:
        return
    accelerator.state.dynamo_plugin.backend = DynamoBackend.INDUCTOR
    allow_graphs(falls_back=True)
    say(
        f"compile: the network is compiled for {counted(count, 'shape')} of micro-batches, about a minute each; not to,"
        " start with accelerate launch --dynamo_backend no"
    )


def pass_shapes(info: DatasetInfo, batch_split: BatchSplit, shapes: NetworkShapes) -> int:
    """How many shapes (B, *spatial) the micro-batches of an epoch have, of a very long one those at its beginning."""
    steps = min(MOST_STEPS, math.ceil(len(info.train) / batch_split.batch_size))
    group_sizes = info.train.records.group_sizes
    micro_batches = TrainingSampler(shapes.train, batch_split, info.config.seed, range(steps), group_sizes)
    return len({(len(slots), slots[0].shape) for slots in micro_batches})


def kernel_seconds(config: UNetConfig, shape: tuple[int, ...], images: int) -> float:
    """About how long the kernels of a micro-batch of images (*shape) take on a fast GPU."""
    pixels = images * math.prod(shape)
    return pixels * config.base_channels * PIXEL_SECONDS * 3 ** (config.dims - 2)


def compiling_pays(args: TrainSettings, images: int, step_seconds: float, shapes: int) -> bool:
    """Whether a run of these flags is faster when it is compiled for so many shapes."""
    epoch_seconds = step_seconds * math.ceil(images / args.planned_batch_size)
    seconds = (args.epochs or math.inf) * epoch_seconds
    if args.max_steps:
        seconds = args.max_steps * step_seconds
    if args.max_minutes:
        seconds = min(seconds, 60 * args.max_minutes)
        if EARLY * epoch_seconds > 60 * args.max_minutes:
            return False
    return seconds >= max(60 * ENOUGH_MINUTES, SHAPE_SECONDS * shapes)


def can_compile(device: torch.device) -> bool:
    """Whether kernels can be compiled for a device: for CUDA, with Triton and a C compiler."""
    if device.type != "cuda":
        return False
    from torch.utils._triton import has_triton  # takes a while

    return has_triton() and any(map(shutil.which, ("cc", "gcc", "clang")))
