"""How a batch is cut into micro-batches, and the record of what has fitted.

Modules: train_utils/micro_batches.py, train_utils/memory/limit.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.runs import unplanned

from data_utils.loading.batch_sampler import BatchSplit, Slot
from runtime.errors import SettingsError
from runtime.launch_profile import LaunchProfile
from train_utils import micro_batches as micro_batches_module
from train_utils.memory.limit import MemoryLimit, read_memory_limit
from train_utils.micro_batches import split_batch, split_from_args, steps_ahead


def profile_of(processes: int, accumulation: int | None = None) -> LaunchProfile:
    return LaunchProfile(processes, 1, "MULTI_CPU", "cpu", "no", gradient_accumulation_steps=accumulation)


@pytest.mark.parametrize(
    ("flags", "processes", "accumulation", "saved", "micro_batch", "expected"),
    [
        ("", 1, None, 2, 2, 2),
        ("--micro-batch-size 1", 2, None, 2, 1, 2),
        ("", 2, 2, None, 1, 2),
        ("--micro-batch-size auto", 1, 1, 2, 4, 1),
    ],
    ids=["fitted", "flag", "profile", "auto"],
)
def test_a_batch_of_4_is_split_by_flags_profile_and_what_has_fitted(
    flags, processes, accumulation, saved, micro_batch, expected
):
    batch_split = split_from_args(unplanned(*flags.split()), profile_of(processes, accumulation), saved)
    assert batch_split.batch_size == 4
    assert batch_split.groups == processes
    assert batch_split.micro_batch_size == micro_batch
    assert batch_split.accumulation == expected


@pytest.mark.parametrize(("processes", "shared", "groups", "micro_batch"), [(4, 1, 4, 1), (4, 2, 2, 2), (6, 3, 2, 2)])
def test_a_batch_is_split_over_the_groups_that_share_a_volume(processes, shared, groups, micro_batch):
    settings = unplanned("--processes-per-volume", str(shared))
    batch_split = split_from_args(settings, profile_of(processes), None)
    assert batch_split.groups == groups
    assert batch_split.processes_per_volume == shared
    assert batch_split.world_size == processes
    assert batch_split.micro_batch_size == micro_batch
    assert batch_split.accumulation == 1


@pytest.mark.parametrize(
    "content",
    ['{"micro_batch_size": 0}', '{"activation_checkpointing": 1}', '{"size": 2}', "{"],
)
def test_a_damaged_record_of_memory_is_reported_and_left_out(tmp_path, capsys, content):
    (tmp_path / "memory.json").write_text(content)
    assert read_memory_limit(tmp_path) == MemoryLimit()
    assert "memory.json is damaged, and is made again if memory runs out (" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "limit"),
    [
        ('{"micro_batch_size": 1}', MemoryLimit(1, False)),
        ('{"activation_checkpointing": true}', MemoryLimit(None, True)),
    ],
)
def test_a_record_of_memory_limits_what_it_names(tmp_path, capsys, content, limit):
    (tmp_path / "memory.json").write_text(content)
    assert read_memory_limit(tmp_path) == limit
    assert capsys.readouterr().out == ""


class Loader(list):
    """Batches, as the loader has them."""

    device = torch.device("cpu")
    dataset = SimpleNamespace(fill=np.full(1, 7.0), std=np.full(1, 3.0))


@pytest.fixture
def loader() -> Loader:
    """A step of two micro-batches of two images, and one of a filler; their pixels hold the number of the batch."""
    slots = [
        [Slot(4, 0, (2, 2)), Slot(5, 0, (2, 2))],
        [Slot(6, 0, (2, 2), ends_step=True), Slot(7, 0, (2, 2), ends_step=True)],
        [Slot(8, 1, (2, 2), is_filler=True, ends_step=True)],
    ]
    loader = Loader()
    for number, batch in enumerate(slots):
        images = torch.full((len(batch), 2, 3, 3), float(number))
        loader.append(
            {"slots": batch, "images": images, "targets": number, "augmentations": "d", "packed_augmentations": "p"}
        )
    return loader


@pytest.fixture
def augmentations(monkeypatch) -> list[tuple]:
    """What `augment` was called with; it returns images and targets as they are."""
    calls = []

    def augment(images, targets, augmentations, packed_augmentations, **options):
        calls.append(
            (augmentations, packed_augmentations, options["fill"].tolist(), options["std"].tolist(), options["recolor"])
        )
        return images, targets

    monkeypatch.setattr(micro_batches_module, "augment", augment)
    return calls


def test_a_step_has_the_batches_up_to_its_last_one(loader, augmentations):
    steps = list(steps_ahead(loader, "recolor"))
    assert [[batch.targets for batch in batches] for batches, _ in steps] == [[0, 1], [2]]
    assert [[batch.is_filler for batch in batches] for batches, _ in steps] == [[False, False], [True]]
    assert [indices for _, indices in steps] == [[4, 5, 6, 7], [8]]
    assert augmentations == [("d", "p", [7], [3], "recolor")] * 3
    images = steps[0][0][1].images
    assert images.unique().tolist() == [1]
    assert images.is_contiguous(memory_format=torch.channels_last)


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
    ids=[
        "whole",
        "processes",
        "flag",
        "profile",
        "fitted",
        "flag before what fitted",
        "uneven",
        "fewer images than processes",
        "three steps",
    ],
)
def test_the_batch_is_split_over_processes_and_accumulation(batch, world, micro, profile, saved, expected):
    batch_split = split_batch(batch, world, micro, profile, saved)
    assert batch_split == BatchSplit(batch, world, *expected, is_fixed=any((micro, profile)))
    assert batch_split.micro_batch_size * batch_split.accumulation * world >= batch


@pytest.mark.parametrize(("micro", "steps"), [(4, 1), (1, 4)])
def test_a_flag_and_a_profile_that_disagree_are_refused(micro, steps):
    with pytest.raises(SettingsError, match=f"size {micro} makes {steps} accumulation steps .* launch profile sets 2"):
        split_batch(16, 4, micro, 2, None)
