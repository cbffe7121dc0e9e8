"""What a run prepares before its first step, in the order of `main`: launch, folder, data, network, loaders."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import gather_object, set_seed
from torch.utils.data import DataLoader

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading import loaders
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import NetworkShapes, network_shapes
from runtime.console import say
from runtime.distributed import barrier_without_timeout, first_on_each_machine, on_main
from runtime.errors import LaunchError
from runtime.launch import (
    check_launch,
    configure_process,
    default_precision,
    describe_profile,
    distributed_options,
    say_kernel_fault,
    say_profile,
)
from tasks.step_loss import StepLoss
from tasks.task import Task
from train_utils.check_data import check_data
from train_utils.compilation import compile_blocks, compile_long_run, compile_loss, tune_kernels
from train_utils.dataset import load_dataset_info
from train_utils.memory import MemoryTrial, reports_shortage, say_split, wanted_split
from train_utils.opened_run import OpenedRun, open_run
from train_utils.publisher import check_token
from train_utils.run_log import available_tracker
from train_utils.settings.plan import check_scale
from train_utils.settings.record import RunSettings
from train_utils.settings.starting_point import starting_point
from train_utils.settings.train_settings import TrainSettings
from train_utils.sharding import prepare_sharding
from train_utils.slabs.slabs import Slabs
from train_utils.slabs.split import check_slabs, split_volumes
from train_utils.sync_batchnorm import synchronize_batchnorm
from unet.config import UNetConfig
from unet.model import UNet


def launch(flags: TrainSettings) -> Accelerator:
    """The accelerator of this process; raises LaunchError if the machine cannot do what the launch profile says."""
    check_token(flags.push_to_hub)
    check_launch(flags.deterministic)
    tracker = available_tracker(flags.tracker)
    precision: str | None = "no"
    if not flags.check_data:  # which computes nothing, so the line on bf16 would be out of place
        profile = recorded_profile(flags) or {}
        # with group norm a step of a narrow network takes up to 1.7 times as long in bf16 on a CPU (torch 2.13)
        precision = default_precision(profile.get("mixed_precision"), suits_cpus=flags.norm != "group")
    accelerator = Accelerator(
        mixed_precision=precision,
        dataloader_config=DataLoaderConfiguration(even_batches=False, non_blocking=True),
        log_with=None if tracker == "none" else tracker,
        project_dir=".",  # `start_run` names it: all processes must agree on it
        kwargs_handlers=distributed_options(flags.ddp_comm_hook),
    )
    check_precision(accelerator)
    configure_process(accelerator, flags.ddp_comm_hook)
    # `describe_profile` reads the launch's value: `backward` would divide by it, but the loss counts all micro-batches
    accelerator.gradient_accumulation_steps = 1
    new_slabs(accelerator, flags)  # an error now, if the processes cannot share volumes
    set_seed(flags.seed, deterministic=flags.deterministic)
    return accelerator


def recorded_profile(flags: TrainSettings) -> dict[str, Any] | None:
    """The launch of the run that is resumed or repeated; None without one, and on a machine without its folder."""
    resumed = flags.output_dir if flags.resume == "auto" else None
    if flags.resume and flags.resume != "auto":
        resumed = Path(flags.resume).resolve().parent.parent
    for run in filter(None, (resumed, flags.like)):
        with suppress(OSError, ValueError):  # what is damaged is named when the run is opened
            return RunSettings.read(run).profile
    return None


def check_precision(accelerator: Accelerator) -> None:
    """Raise LaunchError if the machines of a launch that names no precision would choose different ones."""
    precisions = sorted(set(gather_object([accelerator.mixed_precision])))
    if len(precisions) > 1:
        raise LaunchError(
            f"the processes would compute in {' and '.join(precisions)}; name one: accelerate launch --mixed_precision"
            f" {precisions[0]}"
        )


def new_slabs(accelerator: Accelerator, args: TrainSettings, divisor: int = 1) -> Slabs:
    """The slabs of volumes of this process, one of those that share a volume; `divisor` is the network's."""
    return Slabs.of_process(accelerator.process_index, accelerator.num_processes, args.processes_per_volume, divisor)


def start_run(accelerator: Accelerator, flags: TrainSettings) -> OpenedRun | None:
    """The folder and the checkpoint of the run, found by one process; None, and a line, if nothing is left to do.

    With --check-data the script ends here, with a report on the data, and with exit code 1 if that lists problems.
    """
    if flags.check_data:
        report, problems = on_main(accelerator, lambda: check_data(flags))
        say(report)
        barrier_without_timeout(accelerator)  # a launcher ends all processes when one has ended
        accelerator.end_training()
        raise SystemExit(problems > 0)
    run = on_main(accelerator, lambda: open_run(flags))
    if run is None:
        return None
    accelerator.project_configuration.logging_dir = str(run.output_dir)
    say_profile(describe_profile(accelerator))
    return run


def load_data(accelerator: Accelerator, run: OpenedRun) -> tuple[TrainSettings, DatasetInfo]:
    """The settings of the run, which are the flags and what the plan chooses from the data, and its data set.

    One process reads, the others receive.
    """
    place = on_main(accelerator, lambda: run.reads_places)
    config = replace(run.flags, place=place)
    info = on_main(accelerator, lambda: load_dataset_info(config))
    say("\n".join([f"data: {info}", *info.warnings]))
    args = on_main(accelerator, lambda: run.settings(info))
    info = replace(info, config=args)
    with first_on_each_machine(accelerator):  # one process of a machine fills the cache of `datasets` there
        info.open_here()
    return args, info


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
    say_kernel_fault(accelerator, network.config.dims)
    network.activation_checkpointing = args.activation_checkpointing or run.memory_limit.activation_checkpointing
    return network, task


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
    compile_long_run(accelerator, args, network, batch_split, shapes, recorded)
    return batch_split, shapes


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


def build_loaders(
    accelerator: Accelerator,
    args: TrainSettings,
    info: DatasetInfo,
    config: UNetConfig,
    shapes: NetworkShapes,
    batch_split: BatchSplit,
    steps: Sequence[int],
) -> tuple[DataLoader, DataLoader]:
    """The loaders of training and of validation.

    Args:
        config: the config of the network that trains.
        shapes: those of all images, as `fit_batch` has found them.
        steps: the steps that are still to be made.
    """
    with first_on_each_machine(accelerator):  # one process of a machine decodes for --cache
        return loaders.build_loaders(
            info,
            config,
            shapes,
            batch_split,
            steps=steps,
            num_workers=args.num_workers,
            device=accelerator.device,
        )
