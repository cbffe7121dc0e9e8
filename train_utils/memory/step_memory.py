"""Steps that run out of memory are made again with smaller micro-batches, at once or after a restart."""

import json
import math
import os
import shlex
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import DistributedType, release_memory
from torch import nn

from data_utils.loading.batch_sampler import BatchSplit
from runtime.console import counted, say
from runtime.documents import read_json
from runtime.errors import MemoryShortage, one_line
from runtime.files import replace_file
from runtime.memory import is_out_of_memory
from runtime.values import Natural, from_json
from train_utils.memory.trial import reports_shortage
from train_utils.micro_batches import MicroBatch
from train_utils.run_state import RunState
from train_utils.step_guard import StepGuard

MEMORY_FILE = "memory.json"


@dataclass(frozen=True)
class MemoryLimit:
    """What fits into memory, as a run that ran out of it has recorded in memory.json, in its output folder."""

    micro_batch_size: Natural | None = None
    activation_checkpointing: bool = False


def read_memory_limit(folder: Path) -> MemoryLimit:
    """The limit that a run in this folder has recorded; an empty one if there is none."""
    file = folder / MEMORY_FILE
    try:
        return from_json(MemoryLimit, read_json(file), MEMORY_FILE)
    except FileNotFoundError:
        return MemoryLimit()
    except (OSError, ValueError) as error:
        say(f"{file} is damaged, and is made again if memory runs out ({one_line(error)})")
        return MemoryLimit()


class StepMemory:
    """Micro-batches that become smaller when a step runs out of memory.

    A single process on a GPU makes the step again at once, and keeps the smaller size for later steps. One of several
    processes must end, since the others wait for its gradients; on a CPU the system may end the process itself.
    Started again with --resume auto, the run continues from its last checkpoint with smaller micro-batches, and more of
    them in each step.

    Args:
        folder: the folder of the run, in which the smaller size is recorded.
        network: has `activation_checkpointing`.
        batch_split: the batch split; if it is fixed, micro-batches cannot become smaller.

    Attributes:
        size: the number of images of a micro-batch.
    """

    def __init__(self, accelerator: Accelerator, folder: Path, network: nn.Module, batch_split: BatchSplit) -> None:
        self.folder = folder
        self.network = network
        self.is_fixed = batch_split.is_fixed
        self.size = batch_split.micro_batch_size
        self._repeats = can_repeat_steps(accelerator) and not batch_split.is_fixed

    def cut(self, micro_batches: list[MicroBatch]) -> list[MicroBatch]:
        """The micro-batches in parts of at most `size` images; the list itself if no step can be made again."""
        if not self._repeats:
            return micro_batches
        smaller_batches = []
        for micro_batch in micro_batches:
            for start in range(0, len(micro_batch.images), self.size):
                image_range = slice(start, start + self.size)
                images = micro_batch.images[image_range]
                targets = micro_batch.targets.at(image_range)
                smaller_batches.append(micro_batch._replace(images=images, targets=targets))
        return smaller_batches

    def halve_or_raise(self, error: MemoryError | RuntimeError, guard: StepGuard) -> None:
        """Halve `size` and take back the passes that ran out of memory, so that they can be made again.

        Raises the error again if it is no shortage of memory, or if the step cannot be made again.
        """
        if not (self._repeats and self.size > 1 and is_out_of_memory(error)):
            raise error
        traceback.clear_frames(error.__traceback__)  # the frames refer to the tensors that fill the memory
        guard.undo_passes()
        release_memory()
        before = self.size
        self.size = math.ceil(before / 2)
        self._record(MemoryLimit(self.size, self.network.activation_checkpointing))
        line = f"memory: no room for micro-batches of {before}, the step is made again in micro-batches of {self.size}"
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.network.modules()):
            line += f"; batch norm sees {counted(self.size, 'image')} at a time from now on, so results change"
        say(f"{line} ({one_line(error, 100)})")

    @contextmanager
    def shortage_recorded(self, state: RunState) -> Iterator[None]:
        """A context for training in which running out of memory becomes a MemoryShortage.

        What may fit is recorded, if anything may.
        """
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            process = f"process {os.environ.get('RANK', '0')}"
            where = f"in step {state.step + 1} with micro-batches of {self.size}"
            remedy = "lower --crop-size, --scale or --base-channels"
            if not self.network.training:
                where = f"in the evaluation after step {state.step}"
                remedy = "lower --scale or --base-channels"
            elif self.is_fixed:
                remedy = "lower --micro-batch-size, which flags or profile fix"
            elif self.size > 1 or not self.network.activation_checkpointing:
                remedy = self._continue_smaller()
            reason = one_line(error, 100)
            raise MemoryShortage(f"{process}: out of memory {where}; {remedy} ({reason})") from error

    def _continue_smaller(self) -> str:
        """Record smaller micro-batches, or activation checkpointing for single images; the line that goes on so."""
        recomputes = self.size == 1 or self.network.activation_checkpointing
        size = math.ceil(self.size / 2)
        self._record(MemoryLimit(size, recomputes))
        change = "activation checkpointing" if self.size == 1 else f"micro-batches of {size}"
        folder = shlex.quote(str(self.folder))
        return f"run the same command with --output-dir {folder} --resume auto to continue with {change}"

    def _record(self, limit: MemoryLimit) -> None:
        # machines may not share the folder that the main process has made
        self.folder.mkdir(parents=True, exist_ok=True)
        with replace_file(self.folder / MEMORY_FILE) as file:  # several processes may run out at once
            file.write(json.dumps(asdict(limit)).encode())


def can_repeat_steps(accelerator: Accelerator) -> bool:
    """Whether no other process waits for this one, and its device reports a shortage of memory."""
    return accelerator.distributed_type == DistributedType.NO and reports_shortage(accelerator.device)
