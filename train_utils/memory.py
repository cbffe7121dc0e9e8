"""How a global batch is cut into micro-batches that fit into memory."""

import copy
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import psutil
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from runtime.errors import LaunchError
from runtime.launch import SHARDING
from runtime.console import say

CPU_SHARE = 0.8  # of the free memory that an estimate may claim


class Split(NamedTuple):
    """How a global batch is cut: micro-batch x processes x accumulation places, those beyond the batch are fillers."""

    batch_size: int
    processes: int
    micro_batch_size: int
    accumulation: int

    def with_micro_batches(self, size: int) -> "Split":
        """The same batch in micro-batches of `size`."""
        needed = math.ceil(self.batch_size / self.processes / size)
        return self._replace(micro_batch_size=size, accumulation=needed)

    def __str__(self) -> str:
        return (
            f"{self.batch_size} images a step = {self.micro_batch_size} in a micro-batch"
            f" x {self.processes} processes x {self.accumulation} accumulation steps"
        )


def split_batch(
    batch_size: int,
    processes: int,
    micro_batch_size: int | None,
    accumulation: int | None,
    profile_accumulation: int | None,
    saved_size: int | None = None,
) -> Split:
    """The micro-batches and accumulation steps that hold `batch_size` images over the processes.

    What is not given is derived, a micro-batch never larger than the `saved_size` of a resumed run. Explicit settings
    that disagree are a LaunchError, not a silent winner.
    """
    if profile_accumulation and accumulation and profile_accumulation != accumulation:
        raise LaunchError(
            f"the profile sets {profile_accumulation} gradient accumulation steps,"
            f" --gradient-accumulation-steps {accumulation}; give one of them"
        )
    accumulation = accumulation or profile_accumulation
    share = math.ceil(batch_size / processes)
    size = micro_batch_size or math.ceil(share / (accumulation or 1))
    if saved_size and not micro_batch_size and not accumulation:
        size = min(size, saved_size)
    split = Split(batch_size, processes, size, 1).with_micro_batches(size)
    if micro_batch_size and accumulation and split.accumulation != accumulation:
        raise LaunchError(
            f"--batch-size {batch_size} over {processes} processes takes {split.accumulation} micro-batches of {size},"
            f" not {accumulation} accumulation steps; leave --micro-batch-size or the accumulation to be derived"
        )
    return split._replace(accumulation=accumulation or split.accumulation)


def preflight(
    accelerator: Accelerator,
    network: nn.Module,
    criterion: nn.Module,
    shape: tuple[int, int, int],
    split: Split,
    copies: int,
    fixed: bool,
) -> Split:
    """The split with the largest micro-batch, of at most the one given, that every process has room for.

    Each process finds its own answer without any collective, then all take the smallest: on an accelerator by a forward
    and backward pass of a copy of the network, on a CPU, where running out of memory cannot be caught, by an estimate.
    Where a single image does not fit, `network.activation_checkpointing` is switched on.

    Args:
        network: with `blocks` and `activation_checkpointing`, still where it was built.
        shape: (C, H, W), the largest that training will see.
        copies: how many times the weights are needed beside themselves: gradients, optimizer state, averages.
        fixed: the split was asked for: LaunchError where it does not fit.
    """
    size = split.micro_batch_size
    fits = _estimate_fits if accelerator.device.type == "cpu" else _attempt_fits
    candidates = [size] if fixed else sorted({math.ceil(size / parts) for parts in range(1, size + 1)}, reverse=True)
    for recompute in sorted({network.activation_checkpointing, True}):
        network.activation_checkpointing = recompute
        mine = next((n for n in candidates if fits(accelerator, network, criterion, (n, *shape), copies)), 0)
        agreed = int(accelerator.gather(torch.tensor([mine], device=accelerator.device)).min())
        if agreed:
            break
    images = f"{candidates[-1]} images of {shape[1]} x {shape[2]}"
    if agreed == 0:
        raise LaunchError(
            f"no memory for a micro-batch of {images}, with activation checkpointing neither;"
            " lower --crop-size, --scale, --base-channels or --micro-batch-size"
        )
    how = " with activation checkpointing" if network.activation_checkpointing else ""
    if agreed < size or how:
        line = f"memory: micro-batches of {agreed} images of {shape[1]} x {shape[2]}{how}, of {size} wanted"
        say(line)
    return split if agreed == size else split.with_micro_batches(agreed)


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


def available_bytes() -> int:
    """This process's share of the machine's free memory."""
    return psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


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
