"""Several processes: work that one of them does for all, barriers, and the message if one of them is lost."""

import os
import pickle
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator

from runtime.errors import UserError, one_line
from runtime.parallel import lost_worker

Result = TypeVar("Result")

COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # of the start of the processes, and of the exchange in a step
WORK_TIMEOUT = timedelta(days=1)  # of waiting while one process works for all, for example to fill a cache
# words in the errors that are raised if another process has ended, or hangs
ENDED = ("connection closed", "connection reset", "broken pipe", "process exited", "connection was likely closed")
HANGS = ("timed out", "timeout")
LARGE = 2**20  # bytes of an array that is sent by itself
LOADER = "DataLoader worker"  # the first words of torch's message about a lost loader process
_kept_groups: list[dist.ProcessGroup] = []


def keep_process_groups() -> None:
    """Connect the group for long waits, and keep the group of all processes until this process ends.

    The first is connected now, while no process is busy, since to connect has a time limit. The second is kept also
    after accelerate has destroyed it: when the last reference to gloo's group is dropped, usually by DDP when `main`
    returns, torch 2.13 joins the group's threads while it holds Python's lock. A thread that needs this lock to release
    a tensor then never ends, and the run hangs after its last line.
    """
    if dist.is_initialized():
        _group_without_timeout()
        _kept_groups.append(dist.group.WORLD)


def on_main(accelerator: Accelerator, function: Callable[[], Result]) -> Result:
    """Run `function` on the main process and return its result on every process; they wait for up to a day.

    A UserError ends every process, the main one with the message and the others silently, so that none waits.
    """
    outcome: tuple[Any, UserError | None] = (None, None)
    if accelerator.is_main_process:
        try:
            outcome = (function(), None)
        except UserError as error:
            outcome = (None, error)
    if accelerator.num_processes > 1:
        outcome = _from_main(outcome)
    result, problem = outcome
    if problem is None:
        return result
    if accelerator.is_main_process:
        raise problem
    time.sleep(5)  # torchrun ends all processes as soon as one has ended: the main one needs time to print
    raise SystemExit(1)


def _from_main(value: Any) -> Any:
    """The `value` of the main process on every process.

    Its large arrays are sent one by one, into their final memory: within a pickle each would be held three times.
    """
    group = _group_without_timeout()
    arrays: list[np.ndarray] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        content = buffer.raw()
        if content.nbytes < LARGE:
            return True
        arrays.append(np.frombuffer(content, np.uint8))
        return False

    pickled = pickle.dumps(value, protocol=5, buffer_callback=is_small)  # small arrays are in it
    message: list[Any] = [pickled, [len(array) for array in arrays]]
    dist.broadcast_object_list(message, src=0, group=group)
    if dist.get_rank() == 0:
        for array in arrays:  # torch takes only arrays that may be written to
            dist.broadcast(torch.from_numpy(np.require(array, requirements="W")), src=0, group=group)
        return value
    pickled, lengths = message
    arrays = [np.empty(length, np.uint8) for length in lengths]
    for array in arrays:
        dist.broadcast(torch.from_numpy(array), src=0, group=group)
    return pickle.loads(pickled, buffers=arrays)


@contextmanager
def first_on_each_machine(accelerator: Accelerator) -> Iterator[None]:
    """In this context, each machine's first process runs first; the others wait for it for up to a day."""
    if not accelerator.is_local_main_process:
        barrier_without_timeout(accelerator)
    yield
    if accelerator.is_local_main_process:
        barrier_without_timeout(accelerator)


def barrier_without_timeout(accelerator: Accelerator) -> None:
    """Wait for all processes for up to a day, since one may work for hours."""
    if accelerator.num_processes > 1:
        dist.barrier(group=_group_without_timeout())


@cache
def _group_without_timeout() -> dist.ProcessGroup:
    """A group of all processes with gloo, which notices at once if a process has ended."""
    return dist.new_group(backend="gloo", timeout=WORK_TIMEOUT)


def seed_step(seed: int, step: int, process: int) -> None:
    """Seed torch for one optimizer step of one process, so that a resumed run draws the same numbers."""
    sequence = np.random.SeedSequence([seed, step, process])
    torch.manual_seed(int(sequence.generate_state(1)[0]))


def describe_lost_process(error: Exception) -> str | None:
    """The line to print for an error caused by another process that ended, hangs or never started; None for others."""
    text = one_line(error, limit=10_000)
    if text.startswith(LOADER):
        return lost_worker(text.removeprefix(LOADER).strip()[:100])
    if not isinstance(error, dist.DistError) and "gloo" not in text:
        return None
    process = f"process {os.environ.get('RANK', '0')}"
    reason = re.sub(r"\[[^\]]*\.cc:\d+\] ", "", text).partition(". ")[0][:200]
    if not dist.is_initialized():
        return (
            f"{process} did not find all {os.environ.get('WORLD_SIZE', '1')} processes ({reason}); is every machine"
            " started, with its own --machine_rank and the same --num_machines, --main_process_ip and"
            " --main_process_port?"
        )
    if any(words in text.lower() for words in ENDED):
        return (
            f"{process} lost another process, which has ended ({reason}); start again with --resume auto"
            " to continue from the last checkpoint"
        )
    if any(words in text.lower() for words in HANGS):
        return f"{process} waited too long for another one, which hangs or has ended ({reason}); see its output"
    return None
