"""What happens at which step of a run, in numbers that are written out.

Modules: train_utils/schedule.py, train_utils/optim.py.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.runs import opened_run, unplanned
from support.splits import unread_info, unread_split

from train_utils.run_state import Progress, RunState
from train_utils.schedule import Clock, Schedule


def schedule_of(*flags: str, images: int = 10, total_steps: int | None = None) -> Schedule:
    """The schedule of a run on ten images, four a step: three steps an epoch."""
    args = replace(unplanned(*flags), max_steps=total_steps)
    data = unread_info(unread_split(images, (64, 64)))
    return opened_run(Path("run"), args).schedule(args, data, processes=1, device=torch.device("cpu"))


def steps_of(predicate: Callable[[int], bool], last: int = 12) -> list[int]:
    return [step for step in range(1, last + 1) if predicate(step)]


@pytest.mark.parametrize(
    ("flags", "rates"),
    [("", [0.5, 1]), ("--warmup-steps 4", [0.25, 0.5]), ("--warmup-steps 0", [1, 1 - math.sin(math.pi / 80) ** 2])],
)
def test_the_warm_up_is_a_twentieth_of_the_steps(flags, rates):
    schedule = schedule_of("--learning-rate", "1", *flags.split(), total_steps=40)
    optimizer = SimpleNamespace(param_groups=[])
    assert [schedule.set_learning_rate(optimizer, step) for step in (0, 1)] == pytest.approx(rates)


@pytest.mark.parametrize(
    ("flags", "factor"),
    [("", 0.1), ("--encoder-lr-factor 0.5", 0.5), ("--encoder-weights random", 1.0)],
)
def test_an_encoder_learns_at_a_tenth_of_the_rate_unless_its_weights_are_random(flags, factor):
    optimizer = SimpleNamespace(param_groups=[{"of_encoder": False}, {"of_encoder": True}])
    rate = schedule_of("--encoder", "lite0", *flags.split()).set_learning_rate(optimizer, 5)
    assert [group["lr"] for group in optimizer.param_groups] == [rate, pytest.approx(factor * rate)]


@pytest.mark.parametrize(("share", "rate"), [(0.0, 0.5), (0.9, 0.0244717)], ids=["steps are ahead", "time is ahead"])
def test_the_learning_rate_follows_steps_or_time_whichever_comes_first(share, rate):
    clock = Clock(1.0)
    clock.progress = Progress(share)
    flags = unplanned("--warmup-steps", "1", "--learning-rate", "1")
    schedule = Schedule(flags, steps_per_epoch=3, total_steps=11, clock=clock)
    optimizer = SimpleNamespace(param_groups=[{"of_encoder": False}])
    assert schedule.set_learning_rate(optimizer, 6) == pytest.approx(rate, rel=1e-4)


def test_a_run_is_made_longer_by_what_has_ended_it():
    schedule = Schedule(unplanned("--epochs", "4"), steps_per_epoch=3, total_steps=12, clock=Clock(5.0))
    assert [schedule.length_flag(step) for step in (7, 12)] == ["--max-minutes", "--epochs"]


def test_a_run_by_steps_or_time_is_evaluated_after_a_tenth_of_its_steps_however_short_they_are():
    clock = Clock(5.0)
    clock.progress = Progress(affords_evaluation=False)
    schedule = Schedule(unplanned("--epochs", "10"), steps_per_epoch=4, total_steps=40, clock=clock)
    assert steps_of(schedule.is_evaluation_step, last=5) == [4, 5]


def test_a_run_logs_evaluates_and_saves_at_its_intervals_with_the_last_step():
    schedule = schedule_of("--log-every", "5", "--eval-every", "4", "--checkpoint-every", "0", total_steps=11)
    assert steps_of(schedule.is_log_step) == [5, 10, 11, 12]
    assert steps_of(schedule.is_evaluation_step) == [4, 8, 11, 12]
    assert steps_of(schedule.is_checkpoint_step) == [3, 6, 9, 11, 12]
    assert steps_of(schedule.needs_results) == [3, 4, 5, 6, 8, 9, 10, 11, 12]
    assert schedule.epoch(4) == 4 / 3
    assert schedule.remaining_steps(8) == range(8, 11)
    assert not schedule.is_over(RunState(step=10, evaluations_since_best=99))
    assert schedule.is_over(RunState(step=11))
