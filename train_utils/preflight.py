"""Whether micro-batches fit into memory, found out before the first step."""

import copy
import math
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from data_utils.loading.batch_sampler import BatchSplit
from runtime.console import say
from runtime.errors import SettingsError
from runtime.launch import SHARDING
from runtime.memory import available_bytes

CPU_SHARE = 0.8  # of the free memory that an estimate may claim


def preflight(
    accelerator: Accelerator,
    network: nn.Module,
    criterion: nn.Module,
    shape: tuple[int, ...],
    split: BatchSplit,
    copies: int,
) -> BatchSplit:
    """The split with the largest micro-batch, of at most the one given, that every process has room for.

    Each process finds its own answer without any collective, then all take the smallest: on an accelerator by a forward
    and backward pass of a copy of the network, on a CPU, where running out of memory cannot be caught, by an estimate.
    Where a single image does not fit, `network.activation_checkpointing` is switched on.

    Args:
        network: with `blocks` and `activation_checkpointing`, still where it was built.
        shape: (C, H, W), the largest that training will see.
        copies: how many times the weights are needed beside themselves: gradients, optimizer state, averages.

    Raises SettingsError where nothing fits, or not what was asked for.
    """
    size = split.micro_batch_size
    fits = _estimate_fits if accelerator.device.type == "cpu" else _attempt_fits
    candidates = (
        [size] if split.fixed else sorted({math.ceil(size / parts) for parts in range(1, size + 1)}, reverse=True)
    )
    for recompute in sorted({network.activation_checkpointing, True}):
        network.activation_checkpointing = recompute
        mine = next((n for n in candidates if fits(accelerator, network, criterion, (n, *shape), copies)), 0)
        agreed = int(accelerator.gather(torch.tensor([mine], device=accelerator.device)).min())
        if agreed:
            break
    images = f"{candidates[-1]} images of {shape[1]} x {shape[2]}"
    if agreed == 0:
        raise SettingsError(
            f"no memory for a micro-batch of {images}, with activation checkpointing neither;"
            " lower --crop-size, --scale, --base-channels or --micro-batch-size"
        )
    how = " with activation checkpointing" if network.activation_checkpointing else ""
    if agreed < size or how:
        line = f"memory: micro-batches of {agreed} images of {shape[1]} x {shape[2]}{how}, of {size} wanted"
        say(line)
    split = split if agreed == size else split.with_micro_batches(agreed)
    say(f"batch: {split}")
    return split


def _attempt_fits(
    accelerator: Accelerator, network: nn.Module, criterion: nn.Module, shape: tuple[int, ...], copies: int
) -> bool:
    """Whether a real step fits on the accelerator, which is left as it was found."""
    trial = reserved = logits = None
    try:
        trial = copy.deepcopy(network).to(accelerator.device)
        weights = sum(p.numel() * p.element_size() for p in trial.parameters())
        # the gradients, one of the copies, come by themselves: whole here, spread later where training shards
        shards = accelerator.num_processes if accelerator.distributed_type in SHARDING else 1
        reserved = torch.empty(weights * (copies - 1) // shards, dtype=torch.uint8, device=accelerator.device)
        images = torch.rand(shape, device=accelerator.device).contiguous(memory_format=torch.channels_last)
        masks = torch.zeros((shape[0], *shape[2:]), dtype=torch.int64, device=accelerator.device)
        with accelerator.autocast():
            logits = trial(images)
        criterion(logits.float(), masks, criterion.counts(masks)).backward()
    except torch.OutOfMemoryError:
        return False
    finally:
        del trial, reserved, logits
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    return True


def _estimate_fits(
    accelerator: Accelerator, network: nn.Module, criterion: nn.Module, shape: tuple[int, ...], copies: int
) -> bool:
    return step_bytes(network, shape, copies) < CPU_SHARE * available_bytes()


def step_bytes(network: nn.Module, shape: tuple[int, ...], copies: int) -> int:
    """Bytes of a training step on images (B, C, H, W), counted on the meta device: what is kept for the backward pass,
    the weights and their copies.

    With activation checkpointing that is every block's inputs, and what one block keeps while it is computed again.
    """
    trial = copy.deepcopy(network).to("meta").train()
    trial.activation_checkpointing = False
    held: list[Tensor] = []  # kept alive, so that no two storages ever share an identity
    blocks: list[tuple[int, int]] = []  # for each block: bytes of its inputs, len(held) when it began

    def note_block(block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        blocks.append((_bytes(inputs), len(held)))

    for block in trial.blocks:
        block.register_forward_pre_hook(note_block)

    def hold(tensor: Tensor) -> Tensor:
        held.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        trial(torch.empty(shape, device="meta"))
    weights = sum(p.numel() * p.element_size() for p in trial.parameters())
    if not network.activation_checkpointing:
        return _bytes(held) + weights * (1 + copies)
    ends = [begin for _, begin in blocks[1:]] + [len(held)]
    largest = max(_bytes(held[begin:end]) for (_, begin), end in zip(blocks, ends, strict=True))
    return sum(size for size, _ in blocks) + largest + weights * (1 + copies)


def _bytes(tensors: Sequence[Tensor]) -> int:
    """Of the storages behind tensors, each counted once."""
    return sum({(storage := tensor.untyped_storage())._cdata: storage.nbytes() for tensor in tensors}.values())
