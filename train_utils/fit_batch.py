"""How each batch is cut into micro-batches that fit into memory, and whether these are compiled."""

import math

from accelerate import Accelerator

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import NetworkShapes, network_shapes
from runtime.console import say
from runtime.distributed import on_main
from runtime.errors import SettingsError
from runtime.launch import LaunchProfile, describe_profile
from tasks.task import Task
from train_utils.kernel_tuning import compile_long_run, tune_kernels
from train_utils.memory import MemoryTrial, reports_shortage
from train_utils.opened_run import OpenedRun
from train_utils.settings.train_settings import TrainSettings
from train_utils.slabs.split import check_slabs
from train_utils.start import new_slabs, recorded_profile
from unet.model import UNet


def fit_batch(
    accelerator: Accelerator, run: OpenedRun, args: TrainSettings, info: DatasetInfo, network: UNet, task: Task
) -> tuple[BatchSplit, NetworkShapes]:
    """The split of each batch into micro-batches that fit on every process, and the shapes that it was fitted to.

    The batch itself stays as the flags ask.
    The network's `activation_checkpointing` is switched on if nothing else helps. Raises SettingsError if nothing fits.
    """
    slabs = new_slabs(accelerator, args, network.config.divisors[0])
    shapes = network_shapes(info, network.config)
    check_slabs(accelerator, network, slabs, shapes.shortest_first_side, args.sync_batchnorm)
    tune_kernels(args, accelerator.device, shapes)
    batch_split = wanted_split(args, describe_profile(accelerator), run.largest_micro_batch)
    if reports_shortage(accelerator.device):
        largest_shape = (info.channels, slabs.largest(shapes.largest[0]), *shapes.largest[1:])
        batch_split = MemoryTrial(accelerator, network, task, args, largest_shape).fit(batch_split)
    say_split(batch_split)
    recorded = on_main(accelerator, lambda: recorded_profile(run.flags))
    compile_long_run(accelerator, args, info, network, batch_split, shapes, recorded)
    return batch_split, shapes


def wanted_split(args: TrainSettings, profile: LaunchProfile, saved_size: int | None) -> BatchSplit:
    """The batch split that flags and profile ask for.

    If they leave the micro-batch or the accumulation open, it is derived; a derived micro-batch is never larger than
    `saved_size`, which has fitted before. Raises SettingsError if a flag and the profile disagree.
    """
    batch_size = args.planned_batch_size
    groups = profile.processes // args.processes_per_volume  # the processes of a group share each volume
    asked_size = args.micro_batch_size if isinstance(args.micro_batch_size, int) else None
    accumulation = profile.gradient_accumulation_steps
    share = math.ceil(batch_size / groups)
    size = asked_size or math.ceil(share / (accumulation or 1))
    is_fixed = bool(asked_size or accumulation)
    if saved_size and not is_fixed:
        size = min(size, saved_size)
    batch_split = BatchSplit(batch_size, groups, size, 1, is_fixed, args.processes_per_volume).with_micro_batches(size)
    if asked_size and accumulation and batch_split.accumulation != accumulation:
        raise SettingsError(
            f"--micro-batch-size {size} makes {batch_split.accumulation} accumulation steps of"
            f" --batch-size {batch_size} over {groups} processes, but the launch profile sets {accumulation};"
            " leave out one of them"
        )
    if accumulation:  # with an image in each
        batch_split = batch_split._replace(accumulation=min(accumulation, share))
    return batch_split


def say_split(batch_split: BatchSplit) -> None:
    """Print how a batch is cut, and a batch size that would give every process an image."""
    say(f"batch: {batch_split}")
    if batch_split.idle_groups:
        location = "a step" if batch_split.accumulation == 1 else "the last micro-batch of a step"
        filling_size = batch_split.groups * batch_split.accumulation
        say(
            f"batch: {batch_split.idle_groups} of {batch_split.group_text} have no image in"
            f" {location}, and compute a repeated one that counts nowhere; --batch-size {filling_size} uses all of them"
        )
