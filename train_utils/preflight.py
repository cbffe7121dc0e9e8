"""The memory checks before the first step: whether micro-batches and evaluations fit."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from data_utils.loading.batch_sampler import BatchSplit, images_per_batch
from inference.decoding import new_decoder
from inference.decoding.views import predicted_strips
from inference.tiling.planning import STRIP_MEMORY, choose_tiling, computed_bytes
from inference.tiling.resizing import in_strips
from runtime.console import say
from runtime.device import upload
from runtime.errors import SettingsError, one_line
from runtime.launch import SHARDING
from runtime.memory import available_bytes, is_out_of_memory
from tasks.calibration import no_counts
from tasks.step_loss import StepLoss
from train_utils.evaluation import read_strips
from unet.blocks import channels_last
from unet.config import UNetConfig
from unet.model import UNet

CPU_SHARE = 0.65  # the share of the free memory that an estimate may claim; the heap takes up to 1.5 times the tensors
GPU_SHARE_LEFT = 0.05  # the share of a CUDA device's memory that a trial must leave free
EXCHANGE_BYTES = 10**9  # the least that a trial must leave free with several processes: torch does not count NCCL's
# copies of each trained weight beside itself: its gradient and its moments; Muon has only one moment for most weights
COPIES = {"adamw": 3, "sgd": 2, "muon": 3}
# A step whose estimate is more than this many times the free memory is not tried: in half precision or with other
# kernels a step needs less than its estimate, but never as little as a third.
MAX_ESTIMATE_FACTOR = 3
MOST_ELEMENTS = 2**31 - 1  # many kernels of accelerators count the elements of a tensor with 32 bits
LOGITS_COPIES = 4  # tensors as large as the logits in an evaluation: probabilities, their logarithms, sums by class
STRIPS_TRIED = 2  # strips of a large image that are evaluated to see whether there is room for all of them
STEPS_HELD = 2  # steps whose images are on the device: the next step's images arrive before this one's result is read


class Copies(NamedTuple):
    """How many copies of the weights training needs beside the weights themselves.

    Args:
        trained: copies of the weights that are not frozen: gradients, optimizer state.
        all_weights: copies of all weights, also the frozen ones: their average.
    """

    trained: int
    all_weights: int = 0

    @classmethod
    def of_training(cls, optimizer: str, *, averages: bool) -> "Copies":
        """The copies of a training step.

        Args:
            optimizer: one of OPTIMIZERS.
            averages: whether an average of all weights is kept.
        """
        return cls(COPIES[optimizer], all_weights=int(averages))

    def without_gradients(self) -> "Copies":
        """The copies that stay between steps."""
        return self._replace(trained=self.trained - 1)

    def bytes_for(self, network: nn.Module) -> int:
        """Bytes of all copies of the network's weights."""
        total = 0
        for parameter in network.parameters():
            total += self.all_weights * parameter.nbytes
            if parameter.requires_grad:
                total += self.trained * parameter.nbytes
        return total


class StepFit(NamedTuple):
    """Whether a training step fits into the memory of this process.

    Args:
        network: the network, still on the device where it was built.
        shape: (C, *spatial), the shape of the images.
        copies: the copies of the weights in a training step.
    """

    accelerator: Accelerator
    network: nn.Module
    criterion: StepLoss
    shape: tuple[int, ...]
    copies: Copies

    @property
    def is_estimated(self) -> bool:
        """Whether the answer is an estimate: so it is on a CPU, where running out of memory cannot be caught."""
        return self.accelerator.device.type == "cpu"

    def fits(self, batch_split: BatchSplit) -> bool:
        """Whether a step of this batch split fits."""
        if self.is_estimated:
            return self.fits_by_estimate(batch_split)
        return self.fits_by_trial(batch_split)

    def fits_by_estimate(self, batch_split: BatchSplit) -> bool:
        """Whether the estimate of a step fits into the machine's free memory."""
        images = (batch_split.micro_batch_size, *self.shape)
        size = step_bytes(self.network, images, self.copies) + input_bytes(self.shape, batch_split)
        return size < CPU_SHARE * available_bytes()

    def fits_by_trial(self, batch_split: BatchSplit) -> bool:
        """Whether a real step fits on the accelerator, which is left as it was found."""
        size = batch_split.micro_batch_size
        if _is_hopeless(self.accelerator, self.network, (size, *self.shape)):
            return False  # this saves the seconds of a trial
        shortage = _shortage_of(partial(self._try_step, batch_split))
        if shortage is None:
            return True
        if not isinstance(shortage, torch.OutOfMemoryError):  # other errors may have another cause
            say(f"memory: no room for micro-batches of {size} images: {one_line(shortage)}")
        return False

    def _try_step(self, batch_split: BatchSplit) -> None:
        """Train on random images beside as much memory as training keeps on the accelerator, then free all of it."""
        device = self.accelerator.device
        trial = copy.deepcopy(self.network).to(device).train()
        # the trial makes its own gradients: they are whole here, and spread over processes later if training shards
        state_bytes = self.copies.without_gradients().bytes_for(trial) // _shards(self.accelerator)
        other_bytes = state_bytes + input_bytes(self.shape, batch_split) + _bytes_left(self.accelerator)
        _reserved = torch.empty(other_bytes, dtype=torch.uint8, device=device)  # held to the end
        size = batch_split.micro_batch_size
        images = channels_last(torch.rand((size, *self.shape), device=device))
        targets = self.criterion.task.zero_targets((size, *self.shape[1:]), device)
        with self.accelerator.autocast():
            logits = trial(images)
        self.criterion(logits, targets, self.criterion.counts(targets)).backward()


def fit_batch_split(
    accelerator: Accelerator,
    network: nn.Module,
    criterion: StepLoss,
    shape: tuple[int, ...],
    batch_split: BatchSplit,
    copies: Copies,
) -> BatchSplit:
    """The batch split with the largest micro-batch, up to that of `batch_split`, that fits on every process.

    Each process finds its own answer without any collective, then all take the smallest. An accelerator makes a forward
    and backward pass of a copy of the network; a CPU, on which running out of memory cannot be caught, uses an
    estimate. If a single image does not fit, `network.activation_checkpointing` is switched on.

    Args:
        network: has `blocks` and `activation_checkpointing`, and is still on the device where it was built.
        shape: (C, *spatial), the largest shape that training will see.
        batch_split: the wanted batch split; no smaller one is tried if it `is_fixed`.
        copies: the copies of the weights in a training step.

    Raises SettingsError if nothing fits, or if the fixed batch split does not.
    """
    size = batch_split.micro_batch_size
    kind = "patches" if len(shape) == 4 else "images"  # volumes are cut into patches
    images = f"{kind} of {' x '.join(map(str, shape[1:]))}"
    step_fit = StepFit(accelerator, network, criterion, shape, copies)
    most_images = size
    if not step_fit.is_estimated:
        say(f"memory: trying how many {images} fit, at most {size}")
        most_images = max(1, MOST_ELEMENTS // largest_tensor(network, (1, *shape)))
    candidates = _candidates(batch_split, most_images)
    agreed_split = _largest_that_fits(step_fit, candidates)
    if agreed_split is None and not network.activation_checkpointing:
        network.activation_checkpointing = True
        agreed_split = _largest_that_fits(step_fit, candidates)
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


def _candidates(batch_split: BatchSplit, most_images: int) -> list[BatchSplit]:
    """The batch splits to try, the largest micro-batches first, with at most `most_images` images in each."""
    if batch_split.is_fixed:
        return [batch_split]
    size = batch_split.micro_batch_size
    sizes = sorted({math.ceil(size / parts) for parts in range(1, size + 1)}, reverse=True)
    return [batch_split.with_micro_batches(smaller) for smaller in sizes if smaller <= most_images]


def _largest_that_fits(step_fit: StepFit, candidates: list[BatchSplit]) -> BatchSplit | None:
    """The first candidate that fits on every process; None if no candidate does. Every process must call it.

    Args:
        candidates: batch splits, the largest micro-batch first.
    """
    own_size = 0  # the largest micro-batch that this process has room for
    for candidate in candidates:
        if step_fit.fits(candidate):
            own_size = candidate.micro_batch_size
            break
    agreed_size = _smallest(step_fit.accelerator, own_size)
    for candidate in candidates:
        if candidate.micro_batch_size == agreed_size:
            return candidate
    return None


def say_split(batch_split: BatchSplit) -> None:
    """Print how a batch is cut, and a batch size that would give every process an image."""
    say(f"batch: {batch_split}")
    if batch_split.idle_groups:
        where = "a step" if batch_split.accumulation == 1 else "the last micro-batch of a step"
        filling_size = batch_split.groups * batch_split.accumulation
        say(
            f"batch: {batch_split.idle_groups} of {batch_split.groups} {batch_split.group_words} have no image in"
            f" {where}, and compute a repeated one that counts nowhere; --batch-size {filling_size} uses all of them"
        )


class EvaluationSize(NamedTuple):
    """Sizes of the validation images that need the most memory.

    Args:
        input: (H, W) or (D, H, W), the size at the network.
        target: (H, W) or (D, H, W), the size of the target.
        images: how many images share a forward pass.
    """

    input: tuple[int, ...]
    target: tuple[int, ...]
    images: int

    def bytes_for(self, config: UNetConfig) -> int:
        """About the bytes of an evaluation without weights: activations, logits at target size, and their loss."""
        activations = self.images * computed_bytes(config, self.input)
        logits = 4 * config.num_classes * math.prod(self.target)
        if in_strips(config, self.input, self.target):
            return activations + 2 * min(logits, STRIP_MEMORY)  # two rows of tiles
        return activations + LOGITS_COPIES * logits


def largest_evaluation(config: UNetConfig, inputs: np.ndarray, targets: np.ndarray, pixels: int) -> EvaluationSize:
    """The largest evaluation of a single forward pass.

    Args:
        inputs: (N, n), the sizes of the validation images at the network.
        targets: (N, n), the sizes of their targets; zeros for targets that were not inspected.
        pixels: how many pixels share a forward pass.
    """
    targets = np.where(targets > 0, targets, inputs)
    pairs, counts = np.unique(np.hstack([inputs, targets]), axis=0, return_counts=True)
    sizes = []
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        input_size = tuple(pair[: config.dims])
        target_size = tuple(pair[config.dims :])
        images = min(count, images_per_batch(pixels, input_size)) if config.dims == 2 else 1
        sizes.append(EvaluationSize(input_size, target_size, images))
    return max(sizes, key=lambda size: size.bytes_for(config))


class EvaluationFit(NamedTuple):
    """Whether an evaluation fits into the memory of this process.

    Args:
        network: the network, still on the device where it was built.
        channels: the number of channels of the images.
        copies: the copies of the weights that are kept between steps.
    """

    accelerator: Accelerator
    network: UNet
    criterion: StepLoss
    channels: int
    copies: Copies

    def fits(self, size: EvaluationSize) -> bool:
        """Whether an evaluation of images of this size fits."""
        if self.accelerator.device.type == "cpu":
            return self.fits_by_estimate(size)
        return self.fits_by_trial(size)

    def fits_by_estimate(self, size: EvaluationSize) -> bool:
        """Whether the estimate of an evaluation fits into the machine's free memory."""
        weights_and_copies = weight_bytes(self.network) + self.copies.bytes_for(self.network)
        return size.bytes_for(self.network.config) + weights_and_copies < available_bytes()

    def fits_by_trial(self, size: EvaluationSize) -> bool:
        """Whether a real evaluation fits on the accelerator, which is left as it was found."""
        return _shortage_of(partial(self._try_evaluation, size)) is None

    def _try_evaluation(self, size: EvaluationSize) -> None:
        """Evaluate random images beside as much memory as training keeps on the accelerator, then free all of it."""
        device = self.accelerator.device
        task = self.criterion.task
        trial = copy.deepcopy(self.network).to(device).eval()
        other_bytes = self.copies.bytes_for(trial) // _shards(self.accelerator) + _bytes_left(self.accelerator)
        _reserved = torch.empty(other_bytes, dtype=torch.uint8, device=device)  # held to the end
        with torch.inference_mode(), self.accelerator.autocast():
            images = torch.rand((size.images, self.channels, *size.input), device=device)
            target = task.unknown_target(size.target).map(torch.from_numpy).as_batch().to(device)
            sizes = [size.target] * size.images
            for strips in predicted_strips(trial, images, sizes, self.network.config, new_decoder(task)):
                counts = no_counts(device)
                read_strips(task, new_decoder(task), islice(strips, STRIPS_TRIED), target, counts)
            task.counts(target)


def check_evaluation(
    accelerator: Accelerator,
    network: UNet,
    criterion: StepLoss,
    channels: int,
    size: EvaluationSize,
    copies: Copies,
) -> None:
    """Raise SettingsError if a process has no room to evaluate images of this size; every process must call it.

    As in `fit_batch_split`, an accelerator evaluates some images as a trial, and a CPU uses an estimate.

    Args:
        channels: the number of channels of the images.
        copies: the copies of the weights in a training step; the gradients among them do not count in an evaluation.
    """
    evaluation_fit = EvaluationFit(accelerator, network, criterion, channels, copies.without_gradients())
    if _smallest(accelerator, int(evaluation_fit.fits(size))):
        return
    kind = "volume" if network.config.dims == 3 else "image"
    tiling = choose_tiling(network.config, size.input)
    tiling_text = f", in {tiling}" if tiling else ""
    lower = "--base-channels" if network.config.dims == 3 else "--scale or --base-channels"
    raise SettingsError(
        f"no memory to evaluate a validation {kind} of {' x '.join(map(str, size.target))}{tiling_text};"
        f" choose a lower {lower}, or cut such {kind}s into smaller ones"
    )


def _shortage_of(trial: Callable[[], None]) -> MemoryError | RuntimeError | None:
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


def input_bytes(shape: tuple[int, ...], batch_split: BatchSplit) -> int:
    """Bytes of the images (C, *spatial) and masks on the device at once: all micro-batches of a step and the next.

    The loader gives uint8 values for a pixel or float32 values for a voxel, and a uint8 mask; augmentation turns them
    into float32 values and an int64 mask.
    """
    channels, *sides = shape
    images = STEPS_HELD * batch_split.accumulation * batch_split.micro_batch_size
    value_bytes = 1 if len(sides) == 2 else 4
    loaded = value_bytes * channels + 1
    augmented = 4 * channels + 8
    return images * math.prod(sides) * (loaded + augmented)


def step_bytes(network: nn.Module, shape: tuple[int, ...], copies: Copies) -> int:
    """Bytes of a training step on images (B, C, *spatial), counted on the meta device.

    They are the weights, their copies, and the tensors that are kept for the backward pass. With activation
    checkpointing these tensors are every block's inputs, the tensors between the blocks, and the tensors that one block
    keeps while it is computed again.
    """
    trial = copy.deepcopy(network).to("meta").train()
    trial.activation_checkpointing = False
    kept_tensors: list[Tensor] = []  # kept alive, so that no two storages ever share an identity
    block_inputs: list[int] = []  # their bytes; a skip connection counts twice, since its gradient waits too
    block_begins: list[int] = []  # positions in `kept_tensors`
    block_ends: list[int] = []

    def begin_block(block: nn.Module, arguments: tuple) -> None:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        block_inputs.append(_bytes(tensors))
        block_begins.append(len(kept_tensors))

    def end_block(block: nn.Module, arguments: tuple, output: Any) -> None:
        block_ends.append(len(kept_tensors))

    for block in trial.blocks:
        block.register_forward_pre_hook(begin_block)
        block.register_forward_hook(end_block)

    def hold(tensor: Tensor) -> Tensor:
        kept_tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        trial(torch.empty(shape, device="meta"))
    weights = weight_bytes(trial) + copies.bytes_for(trial)
    if not network.activation_checkpointing:
        return _bytes(kept_tensors) + weights
    block_ranges = list(zip(block_begins, block_ends, strict=True))
    within_blocks = [_bytes(kept_tensors[begin:end]) for begin, end in block_ranges]
    # tensors that no block holds stay in memory for the whole step
    between_blocks = _bytes(_outside(kept_tensors, block_ranges))
    return sum(block_inputs) + between_blocks + max(within_blocks) + weights


def _outside(tensors: Sequence[Tensor], ranges: list[tuple[int, int]]) -> list[Tensor]:
    """The tensors whose position is in none of the ranges, which are in order and do not overlap."""
    outside: list[Tensor] = []
    position = 0
    for begin, end in ranges:
        outside += tensors[position:begin]
        position = end
    outside += tensors[position:]
    return outside


def largest_tensor(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Elements of the largest tensor in a forward pass of images (B, C, *spatial), counted on the meta device."""
    trial = copy.deepcopy(network).to("meta").train()
    trial.activation_checkpointing = False
    images = torch.empty(shape, device="meta")
    counts = [images.numel()]

    def count(tensor: Tensor) -> Tensor:
        counts.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        logits = trial(images)
        outputs = [logits] if isinstance(logits, Tensor) else logits
        for output in outputs:
            count(output)
    return max(counts)


def weight_bytes(network: nn.Module) -> int:
    """Bytes of the network's weights themselves."""
    return sum(parameter.nbytes for parameter in network.parameters())


def _bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of the storages behind tensors; each storage is counted once."""
    sizes: dict[int, int] = {}  # the keys are identities of storages
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())
