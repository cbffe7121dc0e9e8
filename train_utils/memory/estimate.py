"""How much memory training steps and evaluations need, by an estimate."""

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.loading.batch_sampler import BatchSplit, images_per_batch, pixels_per_batch
from data_utils.loading.loaders import NetworkShapes
from inference.tiling.planning import STRIP_MEMORY, computed_bytes
from inference.tiling.resizing import has_several_strips
from unet.config import UNetConfig

# copies of each trained weight beside itself: its gradient and its moments; Muon has only one moment for most weights
COPIES = {"adamw": 3, "sgd": 2, "muon": 3}
LOGITS_COPIES = 4  # tensors as large as the logits in an evaluation: probabilities, their logarithms, sums by class
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
    def for_training(cls, optimizer: str, *, averages: bool) -> "Copies":
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
        if has_several_strips(config, self.input, self.target):
            return activations + 2 * min(logits, STRIP_MEMORY)  # two rows of tiles
        return activations + LOGITS_COPIES * logits


def largest_validation(
    info: DatasetInfo, shapes: NetworkShapes, config: UNetConfig, device: torch.device
) -> EvaluationSize:
    """The largest evaluation of the validation images in a single forward pass."""
    targets = info.reader.target_sizes(info.val.sizes, shapes.val)
    return largest_evaluation(config, shapes.val, targets, pixels_per_batch(device))


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
