"""The network of a run: where it starts, and what the launch profile changes in it before the first step."""

from accelerate import Accelerator

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading.batch_sampler import BatchSplit
from runtime.distributed import on_main
from tasks.step_loss import StepLoss
from tasks.task import Task
from train_utils.compilation import compile_blocks, compile_loss
from train_utils.opened_run import OpenedRun
from train_utils.settings.data_checks import check_scale
from train_utils.settings.starting_point import starting_point
from train_utils.settings.train_settings import TrainSettings
from train_utils.sharding import prepare_sharding
from train_utils.slabs.split import split_volumes
from train_utils.start import new_slabs
from train_utils.sync_batchnorm import synchronize_batchnorm
from unet.model import UNet


def build_network(
    accelerator: Accelerator, run: OpenedRun, args: TrainSettings, info: DatasetInfo
) -> tuple[UNet, Task]:
    """The network and its task: fresh, from --init-from or an encoder, or as the checkpoint has it."""
    axes = info.axes(args.depth)
    origin = on_main(
        accelerator,
        lambda: starting_point(args, axes, model=run.initial_model, trained=run.trained_config),
    )
    preprocess = info.preprocess(origin.trained_preprocess(info.channels))
    reader = info.reader.at_size(info.usual_size(preprocess))
    task = reader.task(args.loss, args.class_weights).to(accelerator.device)
    network = origin.build(info.channels, task, preprocess)
    check_scale(info, run.flags.scale, network.config)
    network.activation_checkpointing = args.activation_checkpointing or run.memory_limit.activation_checkpointing
    return network, task


def prepare_network(
    accelerator: Accelerator, args: TrainSettings, network: UNet, task: Task, batch_split: BatchSplit
) -> StepLoss:
    """Change the network in place as the profile asks, and return the loss that goes with it.

    These are batch norm over all processes, slabs of volumes, sharding and compiled blocks. The accelerator's `prepare`
    comes afterwards.
    """
    synchronize_batchnorm(accelerator, network, args.sync_batchnorm, batch_split)
    network.to(accelerator.device)
    criterion = split_volumes(network, task, new_slabs(accelerator, args, network.config.divisors[0]))
    prepare_sharding(accelerator, network, batch_split, args.max_grad_norm)
    compile_blocks(accelerator, network)
    compile_loss(accelerator, criterion)
    return criterion
