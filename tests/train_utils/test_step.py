"""The passes of a step, with a stand-in for the processes: what is added up, and when gradients are exchanged.

Modules: train_utils/step.py, train_utils/step.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from train_utils import step
from train_utils.step import MicroBatch


class Summed(NamedTuple):
    """What three micro-batches, the second a filler, have left behind.

    Args:
        backwards: the loss of each backward pass, and whether gradients were to be exchanged in it.
        kept_back: the numbers of the backward passes that were made without an exchange.
        waits: how many backward passes were made before each wait for the counts.
        fillers: whether each micro-batch was left out of batch norm.
    """

    loss: torch.Tensor
    micro_batches: list[MicroBatch]
    backwards: list[tuple[float, bool]]
    kept_back: list[int]
    waits: list[int]
    fillers: list[bool]


@pytest.fixture
def summed(monkeypatch) -> Summed:
    backwards, kept_back, waits, fillers = [], [], [], []

    @contextmanager
    def no_sync(model: torch.nn.Module) -> Iterator[None]:
        first = len(backwards)
        yield
        kept_back.extend(range(first, len(backwards)))

    accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=3,
        gradient_accumulation_steps=5,  # DeepSpeed's: `backward` divides by it
        no_sync=no_sync,
        backward=lambda loss: backwards.append((loss.item(), accelerator.sync_gradients)),
    )
    monkeypatch.setattr(step, "leave_out_of_batch_norm", lambda model, is_filler: fillers.append(is_filler))
    micro_batches = []
    for number in (1, 2, 4):
        micro_batches.append(MicroBatch(torch.tensor(float(number), requires_grad=True), None, is_filler=number == 2))
    loss = step.add_gradients(
        accelerator,
        torch.nn.Identity(),
        lambda logits, targets, counts: logits / counts,
        micro_batches,
        torch.tensor(8.0),
        reduction=SimpleNamespace(wait=lambda: waits.append(len(backwards))),
    )
    return Summed(loss, micro_batches, backwards, kept_back, waits, fillers)


def test_gradients_of_micro_batches_add_up_before_one_exchange(summed):
    assert summed.backwards == [(15 * 1 / 8, False), (15 * 2 / 8, False), (15 * 4 / 8, True)]
    assert summed.kept_back == [0, 1]


def test_fillers_alone_are_left_out_of_batch_norm(summed):
    assert summed.fillers == [False, True, False]
