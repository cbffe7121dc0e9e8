"""Work that one process does for all, and randomness that belongs to a step."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

Result = TypeVar("Result")


def on_main(accelerator: Accelerator, function: Callable[[], Result], *user_errors: type[Exception]) -> Result:
    """Run it on the main process and give everyone its result.

    One of `user_errors` ends every process: the main one by the error itself, the others silently, so that it is said
    once and nobody waits.
    """
    outcome: list = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = function()
        except user_errors as error:
            outcome[1] = error
    wait_patiently(accelerator)
    broadcast_object_list(outcome)
    result, problem = outcome
    if problem is None:
        return result
    if accelerator.is_main_process:
        raise problem
    time.sleep(5)  # torchrun ends all processes as soon as one has ended: the main one has the word
    raise SystemExit(1)


@contextmanager
def first_on_each_machine(accelerator: Accelerator) -> Iterator[None]:
    """Within, the first process of each machine goes ahead, the others follow; however long it takes."""
    if not accelerator.is_local_main_process:
        wait_patiently(accelerator)
    yield
    if accelerator.is_local_main_process:
        wait_patiently(accelerator)


def wait_patiently(accelerator: Accelerator) -> None:
    """For all processes, for as long as they live: what one does for all may take hours, a step's exchange may not."""
    if accelerator.num_processes > 1:
        dist.barrier(group=_patient_group())


@cache
def _patient_group() -> dist.ProcessGroup:
    """On gloo, which notices at once when a process has gone."""
    return dist.new_group(backend="gloo", timeout=timedelta(days=7))


def seed_step(seed: int, step: int, process: int) -> None:
    """Seed torch for one optimizer step of one process: a resumed run draws what it would have drawn."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, process]).generate_state(1)[0]))
