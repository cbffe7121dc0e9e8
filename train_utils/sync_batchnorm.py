"""Batch norm over the micro-batches of all processes."""

from accelerate import Accelerator
from torch import nn

from data_utils.loading.batch_sampler import BatchSplit
from runtime.console import say
from runtime.errors import SettingsError


def synchronize_batchnorm(accelerator: Accelerator, model: nn.Module, how: str, split: BatchSplit) -> nn.Module:
    """The model with batch norm over all processes' micro-batches: `on`, `off`, or `auto`, which is on several GPUs.

    Says so once where batch norm sees fewer images at a time than a step has: statistics then depend on the launch,
    as nothing else does. accelerate does not convert by itself, and the layer works on GPUs only.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if not norms:
        return model
    several_gpus = accelerator.num_processes > 1 and accelerator.device.type == "cuda"
    seen = split.micro_batch_size
    if how == "on" and accelerator.device.type != "cuda":
        raise SettingsError("--sync-batchnorm on needs GPUs; on CPUs --norm group gives what it is for")
    if how == "on" or (how == "auto" and several_gpus):
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        seen *= accelerator.num_processes
    if seen < split.batch_size:
        say(
            f"batch norm sees {seen} images at a time, not the {split.batch_size} of a step;"
            " with --norm group nothing depends on how a step is split"
        )
    return model
