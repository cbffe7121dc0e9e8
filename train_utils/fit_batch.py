"""How each batch is cut into micro-batches that fit into memory, and whether these are compiled."""

from accelerate import Accelerator

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import NetworkShapes, network_shapes
from runtime.distributed import on_main
from runtime.launch import describe_profile
from runtime.memory import grow_segments
from tasks.task import Task
from train_utils.kernel_tuning import compile_long_run, tune_kernels
from train_utils.memory.trial import MemoryTrial
from train_utils.micro_batches import split_from_args
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
    if shapes.differ:
        grow_segments(accelerator.device)
    tune_kernels(args, accelerator.device, shapes)
    trial = MemoryTrial(accelerator, network, task, args)
    largest_shape = (info.channels, slabs.largest(shapes.largest[0]), *shapes.largest[1:])
    wanted = split_from_args(args, describe_profile(accelerator), run.largest_micro_batch)
    batch_split = trial.fit(largest_shape, wanted)
    recorded = on_main(accelerator, lambda: recorded_profile(run.flags))
    compile_long_run(accelerator, args, network, batch_split, shapes, images=len(info.train), recorded=recorded)
    return batch_split, shapes
