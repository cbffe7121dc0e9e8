"""Memory that runs out in the middle of a run.

In training it cannot be mended in place: the other processes wait for this one's gradients. So what to do with less is
recorded in the output folder and the process ends; started again with --resume auto, the run goes on from its last
checkpoint in smaller micro-batches, of which a step takes more. In prediction an image stays behind.
"""

import json
import math
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from train_utils.memory import Split

FILE = "memory.json"


class MemoryShortage(RuntimeError):
    """One line with what ran out of memory, and what was recorded for the next start."""


def memory_limit(folder: Path) -> tuple[int | None, bool]:
    """(largest micro-batch, whether activation checkpointing is needed) that a run in this folder has learnt."""
    if not (folder / FILE).exists():
        return None, False
    limit = json.loads((folder / FILE).read_text())
    return limit["micro_batch_size"], limit["activation_checkpointing"]


@contextmanager
def shortage_named(what: str, remedy: str) -> Iterator[None]:
    """Within, running out of memory, a GPU's or the machine's, becomes a MemoryShortage of one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # torch has a type of its own for GPUs only
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold what the memory is full of
        raise MemoryShortage(f"{what}: does not fit into memory; {remedy}") from None


@contextmanager
def shortage_recorded(folder: Path, network: nn.Module, split: Split, fixed: bool, step: int) -> Iterator[None]:
    """Within, running out of memory becomes a MemoryShortage, and a smaller micro-batch is recorded unless `fixed`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        size = split.micro_batch_size
        line = f"process {os.environ.get('RANK', '0')}: out of memory in step {step} with micro-batches of {size}"
        if fixed:
            raise MemoryShortage(f"{line}, as was asked; lower --micro-batch-size") from error
        if size == 1 and network.activation_checkpointing:
            line += " and activation checkpointing"
            raise MemoryShortage(f"{line}; lower --crop-size, --scale or --base-channels") from error
        limit = {"micro_batch_size": math.ceil(size / 2), "activation_checkpointing": size == 1}
        temporary = folder / f".{FILE}.{os.getpid()}.tmp"  # several processes may run out at once
        temporary.write_text(json.dumps(limit))
        temporary.replace(folder / FILE)
        less = "activation checkpointing" if size == 1 else f"micro-batches of {limit['micro_batch_size']}"
        raise MemoryShortage(
            f"{line}; the same command with --output-dir {folder} --resume auto goes on with {less}"
        ) from error
