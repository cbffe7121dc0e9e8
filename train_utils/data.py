"""The data of a run on all its processes: one of them reads and decodes, the others receive."""

from collections.abc import Sequence
from dataclasses import replace

from accelerate import Accelerator
from torch.utils.data import DataLoader

from data_utils.analysis.dataset_info import DatasetInfo, load_dataset_info
from data_utils.loading import loaders
from data_utils.loading.batch_sampler import BatchSplit
from data_utils.loading.loaders import NetworkShapes
from runtime.console import say
from runtime.distributed import first_on_each_machine, on_main
from train_utils.opened_run import OpenedRun
from train_utils.settings.train_settings import TrainSettings
from unet.config import UNetConfig


def load_data(accelerator: Accelerator, run: OpenedRun) -> tuple[TrainSettings, DatasetInfo]:
    """The settings of the run, which are the flags and what the plan chooses from the data, and its data set."""
    place = on_main(accelerator, lambda: run.reads_places)
    config = replace(run.flags, place=place)
    info = on_main(accelerator, lambda: load_dataset_info(config))
    say("\n".join([f"data: {info}", *info.warnings]))
    args = on_main(accelerator, lambda: run.settings(info))
    info = replace(info, config=args)
    with first_on_each_machine(accelerator):  # one process of a machine fills the cache of `datasets` there
        info.open_here()
    return args, info


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
