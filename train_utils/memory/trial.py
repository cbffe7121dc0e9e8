"""What fits into the memory of an accelerator: a training step is tried before the first one.

On a CPU nothing is tried: a shortage cannot be caught there, and what the plan chooses for it is small.
"""

import copy
import math
from collections.abc import Callable
from functools import partial

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from data_utils.loading.batch_sampler import BatchSplit
from runtime.console import say
from runtime.device import upload
from runtime.errors import SettingsError, one_line
from runtime.launch import SHARDING
from runtime.memory import is_out_of_memory
from tasks.step_loss import StepLoss
from tasks.task import Task
from train_utils.optim import OPTIMIZERS
from train_utils.settings.train_settings import TrainSettings
from unet.blocks import channels_last
from unet.model import UNet

SHARE_LEFT = 0.05  # the share of a CUDA device's memory that a trial must leave free
EXCHANGE_BYTES = 10**9  # the least that a trial must leave free with several processes: torch does not count NCCL's
MOST_ELEMENTS = 2**31 - 1  # many kernels of accelerators count the elements of a tensor with 32 bits
STEPS_HELD = 2  # steps whose images are on the device: the next step's images arrive before this one's result is read


class MemoryTrial:
    """Tries steps with a copy of the network; the accelerator is left as it was found.

    Each process finds its own answer without any collective, then all take the smallest.

    Args:
        network: the network, still on the device where it was built.
    """

    def __init__(self, accelerator: Accelerator, network: UNet, task: Task, args: TrainSettings) -> None:
        self.accelerator = accelerator
        self.network = network
        self.criterion = StepLoss(task, strides=network.head_strides)  # a trial needs no other process
        self.is_cpu = accelerator.device.type == "cpu"
        trained = sum(weight.nbytes for weight in network.parameters() if weight.requires_grad)
        averaged = 0
        if args.ema_decay > 0:
            averaged = sum(weight.nbytes for weight in network.parameters())
        shards = accelerator.num_processes if accelerator.distributed_type in SHARDING else 1
        self.state_bytes = (OPTIMIZERS[args.planned_optimizer].moments * trained + averaged) // shards

    def fit(self, shape: tuple[int, ...], batch_split: BatchSplit) -> BatchSplit:
        """The batch in micro-batches that fit on every process: those of `batch_split`, halved until they do.

        If a single image does not fit, `network.activation_checkpointing` is switched on. Every process must call it.

        Args:
            shape: (C, *spatial), the largest shape that training will see.
            batch_split: the wanted batch split; it is not cut further if it `is_fixed`.

        Raises SettingsError if nothing fits.
        """
        if self.is_cpu:
            say_split(batch_split)
            return batch_split
        wanted = batch_split.micro_batch_size
        kind = "patches" if len(shape) == 4 else "images"  # volumes are cut into patches
        images = f"{kind} of {' x '.join(map(str, shape[1:]))}"
        say(f"memory: trying whether {wanted} {images} fit")
        if not batch_split.is_fixed:
            most_images = max(1, MOST_ELEMENTS // largest_tensor(self.network, (1, *shape)))
            batch_split = batch_split.with_micro_batches(min(wanted, most_images))
        while not self._all_fit(partial(self._try_step, shape, batch_split)):
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
        say_split(batch_split)
        return batch_split

    def _all_fit(self, trial: Callable[[], None]) -> bool:
        """Whether a trial fits into the memory of every process."""
        shortage = memory_shortage(trial)
        if shortage and not isinstance(shortage, torch.OutOfMemoryError):  # other errors may have another cause
            say(f"memory: {one_line(shortage)}")
        own_answer = upload(torch.tensor([shortage is None]), self.accelerator.device)
        return bool(self.accelerator.gather(own_answer).all())

    def _try_step(self, shape: tuple[int, ...], batch_split: BatchSplit) -> None:
        """Train on random images beside as much memory as training keeps on the accelerator, then free all of it."""
        device = self.accelerator.device
        # the trial makes its own gradients: they are whole here, and spread over processes later if training shards
        trial = copy.deepcopy(self.network).to(device).train()
        _reserved = self._reserve(input_bytes(shape, batch_split))  # held to the end
        size = batch_split.micro_batch_size
        images = channels_last(torch.rand((size, *shape), device=device))
        targets = self.criterion.task.zero_targets((size, *shape[1:]), device)
        with self.accelerator.autocast():
            logits = trial(images)
        self.criterion(logits, targets, self.criterion.counts(targets)).backward()

    def _reserve(self, image_bytes: int) -> Tensor:
        """Memory that is in use beside a pass: the optimizer's numbers, images that wait, and other libraries'."""
        device = self.accelerator.device
        left = 0
        if device.type == "cuda":
            _, whole = torch.cuda.mem_get_info(device)
            left = int(SHARE_LEFT * whole)
            if self.accelerator.num_processes > 1:
                left = max(left, EXCHANGE_BYTES)
        return torch.empty(self.state_bytes + image_bytes + left, dtype=torch.uint8, device=device)


def memory_shortage(trial: Callable[[], None]) -> MemoryError | RuntimeError | None:
    """The error of a trial that runs out of memory on the accelerator; None if it fits. The memory is freed again."""
    try:
        trial()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return error.with_traceback(None)  # its frames refer to the tensors that fill the memory
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()  # the trial is no part of the run's peak
    return None


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


def largest_tensor(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Elements of the largest tensor in a forward pass of images (B, C, *spatial), counted on the meta device."""
    trial = copy.deepcopy(network).to("meta").train()
    trial.activation_checkpointing = False
    counts: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        counts.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        logits = trial(torch.empty(shape, device="meta"))
        outputs = [logits] if isinstance(logits, Tensor) else logits
        for output in outputs:
            count(output)
    return max(counts)


def input_bytes(shape: tuple[int, ...], batch_split: BatchSplit) -> int:
    """Bytes of the images (C, *spatial) and masks on the device at once: all micro-batches of a step and the next.

    The loader gives uint8 values for a pixel or float32 values for a voxel, and a uint8 mask; augmentation turns them
    into float32 values and an int64 mask.
    """
    channels, *sides = shape
    images = STEPS_HELD * batch_split.accumulation * batch_split.micro_batch_size
    value_bytes = 1 if len(sides) == 2 else 4
    loaded_bytes = value_bytes * channels + 1
    augmented = 4 * channels + 8
    return images * math.prod(sides) * (loaded_bytes + augmented)
