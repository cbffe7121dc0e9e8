"""The memory checks before the first step: whether micro-batches and evaluations fit."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from data_utils.loading.batch_sampler import BatchSplit
from inference.decoding import new_decoder
from inference.decoding.views import predict_strips
from inference.tiling.planning import choose_tiling
from runtime.console import say
from runtime.device import upload
from runtime.errors import SettingsError, one_line
from runtime.launch import SHARDING
from runtime.memory import available_bytes, is_out_of_memory
from tasks.calibration import no_counts
from tasks.step_loss import StepLoss
from tasks.task import Task
from train_utils.evaluation import read_strips
from train_utils.memory.estimate import (
    Copies,
    EvaluationSize,
    input_bytes,
    largest_tensor,
    step_bytes,
    weight_bytes,
)
from train_utils.settings.train_settings import TrainSettings
from unet.blocks import channels_last
from unet.model import UNet

CPU_SHARE = 0.65  # the share of the free memory that an estimate may claim; the heap takes up to 1.5 times the tensors
GPU_SHARE_LEFT = 0.05  # the share of a CUDA device's memory that a trial must leave free
EXCHANGE_BYTES = 10**9  # the least that a trial must leave free with several processes: torch does not count NCCL's
# A step whose estimate is more than this many times the free memory is not tried: in half precision or with other
# kernels a step needs less than its estimate, but never as little as a third.
MAX_ESTIMATE_FACTOR = 3
MOST_ELEMENTS = 2**31 - 1  # many kernels of accelerators count the elements of a tensor with 32 bits
STRIPS_TRIED = 2  # strips of a large image that are evaluated to see whether there is room for all of them


@dataclass(frozen=True)
class Preflight:
    """Finds what fits into the memory of all processes.

    Each process finds its own answer without any collective, then all take the smallest. An accelerator makes a trial
    with a copy of the network, and is left as it was found. A CPU, on which running out of memory cannot be caught,
    uses an estimate.

    Args:
        network: the network, still on the device where it was built.
        copies: the copies of the weights in a training step; the gradients among them do not count in an evaluation.
    """

    accelerator: Accelerator
    network: UNet
    criterion: StepLoss
    copies: Copies

    @classmethod
    def from_args(cls, accelerator: Accelerator, network: UNet, task: Task, args: TrainSettings) -> "Preflight":
        """The memory checks of a run with these settings."""
        criterion = StepLoss(task, strides=network.head_strides)  # a trial needs no other process
        copies = Copies.for_training(args.planned_optimizer, averages=args.ema_decay > 0)
        return cls(accelerator, network, criterion, copies)

    def fit_batch_split(self, shape: tuple[int, ...], batch_split: BatchSplit) -> BatchSplit:
        """The batch split with the largest micro-batch, up to that of `batch_split`, that fits on every process.

        If a single image does not fit, `network.activation_checkpointing` is switched on. Every process must call it.

        Args:
            shape: (C, *spatial), the largest shape that training will see.
            batch_split: the wanted batch split; no smaller one is tried if it `is_fixed`.

        Raises SettingsError if nothing fits, or if the fixed batch split does not.
        """
        network = self.network
        size = batch_split.micro_batch_size
        kind = "patches" if len(shape) == 4 else "images"  # volumes are cut into patches
        images = f"{kind} of {' x '.join(map(str, shape[1:]))}"
        most_images = size
        if not self.is_estimated:
            say(f"memory: trying how many {images} fit, at most {size}")
            most_images = max(1, MOST_ELEMENTS // largest_tensor(network, (1, *shape)))
        candidates = _candidates(batch_split, most_images)
        agreed_split = self._largest_that_fits(shape, candidates)
        if agreed_split is None and not network.activation_checkpointing:
            network.activation_checkpointing = True
            agreed_split = self._largest_that_fits(shape, candidates)
        if agreed_split is None:
            smallest = candidates[-1].micro_batch_size
            raise SettingsError(
                f"no memory for a micro-batch of {smallest} {images}, not even with activation checkpointing;"
                " lower --crop-size, --scale, --base-channels or --micro-batch-size"
            )
        agreed_size = agreed_split.micro_batch_size
        condition = " with activation checkpointing" if network.activation_checkpointing else ""
        if agreed_size < size or network.activation_checkpointing:
            say(f"memory: micro-batches of {agreed_size} {images} fit{condition}, {size} were wanted")
        say_split(agreed_split)
        return agreed_split

    def _largest_that_fits(self, shape: tuple[int, ...], candidates: list[BatchSplit]) -> BatchSplit | None:
        """The first candidate that fits on every process; None if no candidate does. Every process must call it.

        Args:
            candidates: batch splits, the largest micro-batch first.
        """
        own_size = 0  # the largest micro-batch that this process has room for
        for candidate in candidates:
            if self.step_fits(shape, candidate):
                own_size = candidate.micro_batch_size
                break
        agreed_size = _smallest(self.accelerator, own_size)
        for candidate in candidates:
            if candidate.micro_batch_size == agreed_size:
                return candidate
        return None

    def check_evaluation(self, size: EvaluationSize) -> None:
        """Raise SettingsError if a process has no room to evaluate images of this size; every process must call it."""
        if _smallest(self.accelerator, int(self.evaluation_fits(size))):
            return
        config = self.network.config
        kind = "volume" if config.dims == 3 else "image"
        tiling = choose_tiling(config, size.input)
        tiling_text = f", in {tiling}" if tiling else ""
        lower = "--base-channels" if config.dims == 3 else "--scale or --base-channels"
        raise SettingsError(
            f"no memory to evaluate a validation {kind} of {' x '.join(map(str, size.target))}{tiling_text};"
            f" choose a lower {lower}, or cut such {kind}s into smaller ones"
        )

    @property
    def is_estimated(self) -> bool:
        """Whether the answers are estimates."""
        return self.accelerator.device.type == "cpu"

    def step_fits(self, shape: tuple[int, ...], batch_split: BatchSplit) -> bool:
        """Whether a training step on images (C, *spatial) fits into the memory of this process."""
        if self.is_estimated:
            return self.step_fits_by_estimate(shape, batch_split)
        return self.step_fits_by_trial(shape, batch_split)

    def step_fits_by_estimate(self, shape: tuple[int, ...], batch_split: BatchSplit) -> bool:
        """Whether the estimate of a step fits into the machine's free memory."""
        images = (batch_split.micro_batch_size, *shape)
        size = step_bytes(self.network, images, self.copies) + input_bytes(shape, batch_split)
        return size < CPU_SHARE * available_bytes()

    def step_fits_by_trial(self, shape: tuple[int, ...], batch_split: BatchSplit) -> bool:
        """Whether a real step fits on the accelerator."""
        size = batch_split.micro_batch_size
        if _is_hopeless(self.accelerator, self.network, (size, *shape)):
            return False  # this saves the seconds of a trial
        shortage = _memory_shortage(partial(self._try_step, shape, batch_split))
        if shortage is None:
            return True
        if not isinstance(shortage, torch.OutOfMemoryError):  # other errors may have another cause
            say(f"memory: no room for micro-batches of {size} images: {one_line(shortage)}")
        return False

    def evaluation_fits(self, size: EvaluationSize) -> bool:
        """Whether an evaluation of images of this size fits into the memory of this process."""
        if self.is_estimated:
            return self.evaluation_fits_by_estimate(size)
        return self.evaluation_fits_by_trial(size)

    def evaluation_fits_by_estimate(self, size: EvaluationSize) -> bool:
        """Whether the estimate of an evaluation fits into the machine's free memory."""
        weights = weight_bytes(self.network) + self.copies.without_gradients().bytes_for(self.network)
        return size.bytes_for(self.network.config) + weights < available_bytes()

    def evaluation_fits_by_trial(self, size: EvaluationSize) -> bool:
        """Whether a real evaluation fits on the accelerator."""
        return _memory_shortage(partial(self._try_evaluation, size)) is None

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

    def _try_evaluation(self, size: EvaluationSize) -> None:
        """Evaluate random images beside as much memory as training keeps on the accelerator, then free all of it."""
        device = self.accelerator.device
        task = self.criterion.task
        config = self.network.config
        trial = copy.deepcopy(self.network).to(device).eval()
        _reserved = self._reserve(0)  # held to the end
        with torch.inference_mode(), self.accelerator.autocast():
            images = torch.rand((size.images, config.in_channels, *size.input), device=device)
            target = task.unknown_target(size.target).map(torch.from_numpy).as_batch().to(device)
            sizes = [size.target] * size.images
            for strips in predict_strips(trial, images, sizes, config, new_decoder(task)):
                counts = no_counts(device)
                read_strips(task, new_decoder(task), islice(strips, STRIPS_TRIED), target, counts)
            task.counts(target)

    def _reserve(self, image_bytes: int) -> Tensor:
        """Memory of the accelerator that is in use beside a pass.

        It holds the copies of the weights that stay between steps, the images that wait, and what libraries other than
        torch need.
        """
        weights = self.copies.without_gradients().bytes_for(self.network) // _shards(self.accelerator)
        size = weights + image_bytes + _bytes_left(self.accelerator)
        return torch.empty(size, dtype=torch.uint8, device=self.accelerator.device)


def _candidates(batch_split: BatchSplit, most_images: int) -> list[BatchSplit]:
    """The batch splits to try, the largest micro-batches first, with at most `most_images` images in each."""
    if batch_split.is_fixed:
        return [batch_split]
    size = batch_split.micro_batch_size
    sizes = sorted({math.ceil(size / parts) for parts in range(1, size + 1)}, reverse=True)
    return [batch_split.with_micro_batches(smaller) for smaller in sizes if smaller <= most_images]


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


def _memory_shortage(trial: Callable[[], None]) -> MemoryError | RuntimeError | None:
    """The error of a trial that runs out of memory on the accelerator; None if it fits. The memory is freed again."""
    try:
        trial()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return error.with_traceback(None)  # its frames refer to the tensors that fill the memory
    finally:
        _forget_trial()
    return None


def _forget_trial() -> None:
    """Free the memory of a trial that has ended, and keep it out of the run's memory peaks."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _shards(accelerator: Accelerator) -> int:
    """The number of processes that the copies of the weights are spread over."""
    return accelerator.num_processes if accelerator.distributed_type in SHARDING else 1


def _smallest(accelerator: Accelerator, number: int) -> int:
    """The smallest of the numbers of all processes."""
    own_number = upload(torch.tensor([number]), accelerator.device)
    return int(accelerator.gather(own_number).min())


def _is_hopeless(accelerator: Accelerator, network: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a step on images (B, C, *spatial) needs, by an estimate, far more than the free memory."""
    free = _free_bytes(accelerator)
    if free is None:
        return False
    return step_bytes(network, shape, Copies(0)) > MAX_ESTIMATE_FACTOR * free


def _free_bytes(accelerator: Accelerator) -> int | None:
    """The free bytes of a CUDA device; None on other devices, which do not report them."""
    if accelerator.device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(accelerator.device)
    return free


def _bytes_left(accelerator: Accelerator) -> int:
    """Bytes of a CUDA device's memory that training leaves to libraries other than torch."""
    if accelerator.device.type != "cuda":
        return 0
    _, whole = torch.cuda.mem_get_info(accelerator.device)
    share = int(GPU_SHARE_LEFT * whole)
    return max(share, EXCHANGE_BYTES) if accelerator.num_processes > 1 else share
