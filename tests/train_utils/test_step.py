"""A step of training with stand-ins for processes, optimizer and guard: what is added up, exchanged and repeated.

Modules: train_utils/step.py, train_utils/micro_batches.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from support.in_process import parsed

from train_utils import step
from train_utils.micro_batches import MicroBatch
from train_utils.run_state import RunState


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


class Loss:
    """The images as they are, divided by the counts of a step; targets are their own counts."""

    def counts(self, targets: float) -> torch.Tensor:
        return torch.tensor([targets])

    def __call__(self, images: torch.Tensor, targets: float, counts: torch.Tensor) -> torch.Tensor:
        return images / counts.sum()


class Step:
    """A step on two micro-batches in one of several equal processes, and what its parts were told.

    Args:
        errors: what the first forward passes raise.
    """

    def __init__(self, processes: int = 1, max_grad_norm: float = 0.0, errors: tuple[Exception, ...] = ()) -> None:
        self.events: list[str] = []
        self.errors = [*errors]
        self.repeated: list[Exception] = []
        self.micro_batches = [MicroBatch(torch.tensor(number), 2 * number, is_filler=False) for number in (1.0, 3.0)]
        accelerator = SimpleNamespace(
            device=torch.device("cpu"),
            num_processes=processes,
            process_index=0,
            gradient_accumulation_steps=1,
            no_sync=lambda model: nullcontext(),
            backward=lambda loss: None,
            reduce=lambda values, reduction: values * processes,
            clip_grad_norm_=self.clip,
        )
        events = self.events
        guard = SimpleNamespace(
            message=lambda like: torch.ones(1, dtype=like.dtype),
            begin_step=lambda: events.append("begin"),
            judge=self.judge,
            state=RunState(step=3),
        )
        optimizer = SimpleNamespace(step=lambda: events.append("step"), zero_grad=lambda: events.append("clear"))
        memory = SimpleNamespace(cut=list, halve_or_raise=lambda error, guard: self.repeated.append(error))
        model = torch.nn.Identity()
        model.register_forward_pre_hook(self.fail)
        self.is_made = step.train_step(
            accelerator,
            model,
            optimizer,
            Loss(),
            self.micro_batches,
            args=parsed("--dataset", "data", "--max-grad-norm", str(max_grad_norm)),
            guard=guard,
            memory=memory,
        )

    def fail(self, *_: object) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def clip(self, parameters: Iterator[torch.nn.Parameter], limit: float) -> float:
        self.limit = limit
        return 2.5  # a number, as DeepSpeed's

    def judge(self, loss: torch.Tensor, grad_norm: float, stop_requests: torch.Tensor) -> str:
        self.events.append("judge")
        self.judged = (loss.item(), grad_norm, stop_requests.item())
        return "made"


@pytest.fixture
def exchanges(monkeypatch) -> list[list[float]]:
    """The numbers that are exchanged with a second process, which has the same ones."""
    exchanges = []

    def all_reduce(values: torch.Tensor, async_op: bool) -> SimpleNamespace:
        assert async_op
        exchanges.append(values.tolist())
        return SimpleNamespace(wait=lambda: values.mul_(2))

    monkeypatch.setattr(step.dist, "all_reduce", all_reduce)
    return exchanges


def test_a_step_is_judged_before_the_optimizer_makes_it():
    made = Step()
    assert made.events == ["begin", "judge", "step", "clear"]
    assert made.is_made == "made"


def test_counts_and_stops_of_two_processes_are_exchanged_once(exchanges):
    made = Step(processes=2)
    assert exchanges == [[8, 1]]
    assert made.judged == (2 * 4 / 16, 2.5, 2)


@pytest.mark.parametrize(("max_grad_norm", "limit"), [(0.0, float("inf")), (0.5, 0.5)])
def test_a_norm_of_0_clips_no_gradient(max_grad_norm, limit):
    assert Step(max_grad_norm=max_grad_norm).limit == limit


@pytest.mark.parametrize("error", [MemoryError("of the host"), RuntimeError("out of memory")])
def test_a_step_that_ran_out_of_memory_is_made_again_from_its_first_micro_batch(error):
    made = Step(errors=(error, error))
    assert made.repeated == [error, error]
    assert made.judged[0] == 4 / 8
    assert made.events == ["begin", "judge", "step", "clear"]
