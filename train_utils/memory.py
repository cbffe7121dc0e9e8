"""How a batch is cut into micro-batches that fit into memory.

A step is tried before the first one, and a later shortage is recorded for the next start.
"""

import copy
import math
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from data_utils.loading.batch_sampler import BatchSplit
from runtime.console import say
from runtime.device import upload
from runtime.errors import MemoryShortage, SettingsError, one_line
from runtime.files import tolerate_write_errors
from runtime.launch import SHARDING
from runtime.machine import available_bytes, is_out_of_memory
from tasks.step_loss import StepLoss
from tasks.task import Task
from train_utils.run_state import RunState
from train_utils.settings.record import RunSettings
from train_utils.settings.train_settings import TrainSettings
from unet.blocks import channels_last
from unet.model import UNet

SHARE_LEFT = 0.05  # the share of a CUDA device's memory that a trial must leave free
EXCHANGE_BYTES = 10**9  # the least that a trial must leave free with several processes: torch does not count NCCL's
MOST_ELEMENTS = 2**31 - 1  # many kernels of accelerators count the elements of a tensor with 32 bits
MOMENTS = 2  # numbers that an optimizer keeps for each weight, at most
VALUE_BYTES = 4 + 4  # of a value of an image, loaded and augmented
MASK_BYTES = 1 + 8
STEPS_HELD = 2  # steps whose images are on the device: the next step's images arrive before this one's result is read


def wanted_split(args: TrainSettings, profile: dict[str, Any], saved_size: int | None) -> BatchSplit:
    """The batch split that flags and profile ask for.

    If they leave the micro-batch or the accumulation open, it is derived; a derived micro-batch is never larger than
    `saved_size`, which has fitted before. Raises SettingsError if a flag and the profile disagree.
    """
    batch_size = args.planned_batch_size
    groups = profile["processes"] // args.processes_per_volume  # the processes of a group share each volume
    asked_size = args.micro_batch_size if isinstance(args.micro_batch_size, int) else None
    accumulation = profile.get("gradient_accumulation_steps")
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


def check_image_fits(channels: int, *shape: int) -> None:
    """Raises SettingsError if one image of a shape, as the network takes it, is larger than the memory that is free."""
    needed = math.prod(shape) * channels * torch.float32.itemsize
    available = available_bytes()
    if needed > available:
        raise SettingsError(
            f"one image of {' x '.join(f'{side:,}' for side in shape)} pixels needs {needed / 1e9:,.1f} GB of memory,"
            f" {available / 1e9:,.1f} GB are free; give a smaller --image-size, --crop-size or --scale"
        )


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


@contextmanager
def shortage_recorded(
    folder: Path, settings: RunSettings, network: UNet, batch_split: BatchSplit, state: RunState
) -> Iterator[None]:
    """A context for training in which running out of memory becomes a MemoryShortage.

    What may fit is recorded in the run.json of the run, if anything may: micro-batches of half the size, or activation
    checkpointing for single images. Started again with --resume auto, the run continues with that, and each step still
    has all its images.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        size = batch_split.micro_batch_size
        where = f"in step {state.step + 1} with micro-batches of {size}"
        remedy = "lower --crop-size, --scale or --base-channels"
        if not network.training:
            where = f"in the evaluation after step {state.step}"
            remedy = "lower --scale or --base-channels"
        elif batch_split.is_fixed:
            remedy = "lower --micro-batch-size, which flags or profile fix"
        elif size > 1 or not network.activation_checkpointing:
            recomputes = size == 1 or network.activation_checkpointing
            flags = settings.flags | {"activation_checkpointing": recomputes}
            limited = replace(settings, micro_batch_size=math.ceil(size / 2), flags=flags)
            with tolerate_write_errors("run.json"):  # several processes may run out at once, and write the same
                limited.write(folder)
            change = f"micro-batches of {limited.micro_batch_size}"
            if size == 1:
                change = "activation checkpointing"
            command = f"the same command with --output-dir {shlex.quote(str(folder))} --resume auto"
            remedy = f"run {command} to continue with {change}"
        process = os.environ.get("RANK", "0")
        raise MemoryShortage(f"process {process}: out of memory {where}; {remedy} ({one_line(error, 100)})") from error


@dataclass(frozen=True)
class MemoryTrial:
    """Tries steps with a copy of the network; the accelerator is left as it was found.

    Each process tries on its own without any collective, then all take the smallest.

    Args:
        network: the network, still on the device where it was built.
        shape: (C, *spatial), the largest shape that training will see.
    """

    accelerator: Accelerator
    network: UNet
    task: Task
    args: TrainSettings
    shape: tuple[int, ...]

    def fit(self, batch_split: BatchSplit) -> BatchSplit:
        """The batch in micro-batches that fit on every process: those of `batch_split`, halved until they do.

        If a single image does not fit, `network.activation_checkpointing` is switched on. Every process must call it.
        A batch split that `is_fixed` is not cut further. Raises SettingsError if nothing fits.
        """
        wanted = batch_split.micro_batch_size
        kind = "patches" if len(self.shape) == 4 else "images"  # volumes are cut into patches
        images = f"{kind} of {' x '.join(map(str, self.shape[1:]))}"
        say(f"memory: trying whether {wanted} {images} fit")
        if not batch_split.is_fixed:
            batch_split = batch_split.with_micro_batches(min(wanted, most_images(self.network, self.shape)))
        while not self._fits(batch_split):
            size = batch_split.micro_batch_size
            if size > 1 and not batch_split.is_fixed:
                batch_split = batch_split.with_micro_batches(math.ceil(size / 2))
            elif not self.network.activation_checkpointing:
                self.network.activation_checkpointing = True
            else:
                raise SettingsError(
                    f"no memory for a micro-batch of {size} {images}, not even with activation checkpointing;"
                    " lower --crop-size, --scale, --base-channels or --micro-batch-size"
                )
        size = batch_split.micro_batch_size
        condition = " with activation checkpointing" if self.network.activation_checkpointing else ""
        if size < wanted or condition:
            say(f"memory: micro-batches of {size} {images} fit{condition}, {wanted} were wanted")
        return batch_split

    def _fits(self, batch_split: BatchSplit) -> bool:
        """Whether a step fits into the memory of every process; the memory is freed again."""
        shortage = None
        try:
            self.try_step(batch_split)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            shortage = error.with_traceback(None)  # its frames refer to the tensors that fill the memory
        if self.accelerator.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()  # the trial is no part of the run's peak
        if shortage and not isinstance(shortage, torch.OutOfMemoryError):  # other errors may have another cause
            say(f"memory: {one_line(shortage)}")
        fits_here = upload(torch.tensor([shortage is None]), self.accelerator.device)
        return bool(self.accelerator.gather(fits_here).all())

    def try_step(self, batch_split: BatchSplit) -> None:
        """Train on random images beside as much memory as training keeps on the accelerator, then free all of it."""
        device = self.accelerator.device
        # the trial makes its own gradients: they are whole here, and spread over processes later if training shards
        trial = copy.deepcopy(self.network).to(device).train()
        _reserved = torch.empty(self.reserved_bytes(batch_split), dtype=torch.uint8, device=device)  # held to the end
        size = batch_split.micro_batch_size
        images = channels_last(torch.rand((size, *self.shape), device=device))
        targets = self.task.unknown_batch((size, *self.shape[1:]), device)
        criterion = StepLoss(self.task, strides=self.network.head_strides)  # a trial needs no other process
        with self.accelerator.autocast():
            logits = trial(images)
        criterion(logits, targets, criterion.counts(targets)).backward()

    def reserved_bytes(self, batch_split: BatchSplit) -> int:
        """Bytes in use beside a pass: the optimizer's numbers, images that wait, and other libraries'."""
        trained = sum(weight.nbytes for weight in self.network.parameters() if weight.requires_grad)
        state = MOMENTS * trained
        if self.args.ema_decay > 0:
            state += sum(weight.nbytes for weight in self.network.parameters())
        processes = self.accelerator.num_processes
        if self.accelerator.distributed_type in SHARDING:
            state //= processes
        left = 0
        if self.accelerator.device.type == "cuda":
            _, whole = torch.cuda.mem_get_info(self.accelerator.device)
            least = EXCHANGE_BYTES if processes > 1 else 0
            left = max(least, int(SHARE_LEFT * whole))
        channels, *sides = self.shape
        images = STEPS_HELD * batch_split.accumulation * batch_split.micro_batch_size
        return state + images * math.prod(sides) * (VALUE_BYTES * channels + MASK_BYTES) + left


def reports_shortage(device: torch.device) -> bool:
    """Whether a shortage of memory is an error that can be caught; on a CPU the system may end the process itself.

    There nothing is tried: what the plan chooses for a CPU is small.
    """
    return device.type != "cpu"


def most_images(network: UNet, shape: tuple[int, ...]) -> int:
    """The most images (C, *spatial) of a micro-batch by which no tensor has too many elements."""
    config = network.config
    channels = max(2 * config.base_channels, config.num_classes, config.network_channels)  # of the last step up
    return max(1, MOST_ELEMENTS // (channels * math.prod(shape[1:])))
