"""How a batch is cut into micro-batches."""

import pytest
from support.runs import unplanned

from data_utils.loading.batch_sampler import BatchSplit
from runtime.errors import SettingsError
from train_utils.memory import wanted_split


def profile_of(processes: int, accumulation: int | None = None) -> dict[str, int | None]:
    return {"processes": processes, "gradient_accumulation_steps": accumulation}


@pytest.mark.parametrize(("processes", "shared", "groups", "micro_batch"), [(4, 1, 4, 1), (4, 2, 2, 2), (6, 3, 2, 2)])
def test_a_batch_is_split_over_the_groups_that_share_a_volume(processes, shared, groups, micro_batch):
    settings = unplanned("--processes-per-volume", str(shared))
    batch_split = wanted_split(settings, profile_of(processes), None)
    assert batch_split.groups == groups
    assert batch_split.processes_per_volume == shared
    assert batch_split.world_size == processes
    assert batch_split.micro_batch_size == micro_batch
    assert batch_split.accumulation == 1


@pytest.mark.parametrize(
    ("batch", "world", "micro", "profile", "saved", "expected"),
    [
        (16, 1, None, None, None, (16, 1)),
        (16, 4, None, None, None, (4, 1)),
        (16, 4, 2, None, None, (2, 2)),
        (16, 4, None, 4, None, (1, 4)),
        (16, 1, None, None, 4, (4, 4)),
        (16, 1, 8, None, 4, (8, 2)),
        (5, 3, None, None, None, (2, 1)),
        (2, 3, None, None, None, (1, 1)),
        (4, 1, None, 3, None, (2, 3)),
    ],
)
def test_the_batch_is_split_over_processes_and_accumulation(batch, world, micro, profile, saved, expected):
    flags = ["--batch-size", str(batch), *(["--micro-batch-size", str(micro)] if micro else [])]
    batch_split = wanted_split(unplanned(*flags), profile_of(world, profile), saved)
    assert batch_split == BatchSplit(batch, world, *expected, is_fixed=any((micro, profile)))
    assert batch_split.micro_batch_size * batch_split.accumulation * world >= batch


@pytest.mark.parametrize(("micro", "steps"), [(4, 1), (1, 4)])
def test_a_flag_and_a_profile_that_disagree_are_refused(micro, steps):
    settings = unplanned("--batch-size", "16", "--micro-batch-size", str(micro))
    with pytest.raises(SettingsError, match=f"size {micro} makes {steps} accumulation steps .* launch profile sets 2"):
        wanted_split(settings, profile_of(4, 2), None)
