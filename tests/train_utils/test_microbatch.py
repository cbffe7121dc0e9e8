"""How a batch is cut into micro-batches, and the record of what has fitted.

Modules: train_utils/microbatch.py, train_utils/memory/limit.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_utils.loading.batch_sampler import BatchSplit, Slot
from runtime.errors import SettingsError
from train_utils import microbatch
from train_utils.memory.limit import MemoryLimit, read_memory_limit
from train_utils.microbatch import split_batch, steps_ahead


def test_a_batch_is_accumulated_over_no_more_micro_batches_than_it_has_images():
    batch_split = split_batch(4, 2, None, 8, None)
    assert (batch_split.micro_batch_size, batch_split.accumulation) == (1, 2)


@pytest.mark.parametrize(
    "content",
    [
        '{"micro_batch_size": 0}',
        '{"micro_batch_size": true}',
        '{"micro_batch_size": 2.0}',
        '{"activation_checkpointing": 1}',
        '{"size": 2}',
        "[]",
        "{",
    ],
)
def test_a_damaged_record_of_memory_is_said_and_left_out(tmp_path, capsys, content):
    (tmp_path / "memory.json").write_text(content)
    assert read_memory_limit(tmp_path) == MemoryLimit()
    assert "memory.json is damaged, and is made again if memory runs out (" in capsys.readouterr().out


def test_a_record_of_memory_that_cannot_be_read_is_said_and_left_out(tmp_path, capsys):
    (tmp_path / "memory.json").mkdir()
    assert read_memory_limit(tmp_path) == MemoryLimit()
    assert "memory.json is damaged, and is made again if memory runs out (" in capsys.readouterr().out


def test_a_record_of_memory_may_say_little_or_nothing(tmp_path, capsys):
    assert read_memory_limit(tmp_path) == MemoryLimit(None, False)
    for content, limit in (("{}", MemoryLimit()), ('{"micro_batch_size": 1}', MemoryLimit(1, False))):
        (tmp_path / "memory.json").write_text(content)
        assert read_memory_limit(tmp_path) == limit
    (tmp_path / "memory.json").write_text('{"activation_checkpointing": true}')
    assert read_memory_limit(tmp_path) == MemoryLimit(None, True)
    assert capsys.readouterr().out == ""


class Loader(list):
    """Batches, as the loader has them."""

    device = torch.device("cpu")
    dataset = SimpleNamespace(fill=np.full(1, 7.0), std=np.full(1, 3.0))


def test_a_step_has_the_batches_up_to_its_last_one_and_the_records_of_all_of_them(monkeypatch):
    calls = []

    def augment(images, targets, draws, packed_draws, **options):
        calls.append((draws, packed_draws, options["fill"].tolist(), options["std"].tolist(), options["recolor"]))
        return images, targets

    monkeypatch.setattr(microbatch, "augment", augment)
    slots = [
        [Slot(4, 0, (2, 2)), Slot(5, 0, (2, 2))],
        [Slot(6, 0, (2, 2), ends_step=True), Slot(7, 0, (2, 2), ends_step=True)],
        [Slot(8, 1, (2, 2), filler=True, ends_step=True)],
    ]
    loader = Loader()
    for number, batch in enumerate(slots):
        images = torch.full((len(batch), 2, 3, 3), float(number))
        loader.append({"slots": batch, "images": images, "targets": number, "draws": "d", "packed_draws": "p"})
    ready = []
    steps = list(steps_ahead(loader, "recolor", ready.append))
    assert [indices for _, indices in steps] == [[4, 5, 6, 7], [8]]
    assert [[batch.targets for batch in batches] for batches, _ in steps] == [[0, 1], [2]]
    assert [[batch.is_filler for batch in batches] for batches, _ in steps] == [[False, False], [True]]
    assert ready == [loader[:2], loader[2:]]
    images = steps[0][0][1].images
    assert images.shape == (2, 2, 3, 3)
    assert images.unique().tolist() == [1]
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert calls == [("d", "p", [7], [3], "recolor")] * 3
    assert len(list(steps_ahead(loader, "recolor"))) == 2


@pytest.mark.parametrize(
    ("batch", "world", "micro", "profile", "saved", "expected"),
    [
        (16, 1, None, None, None, (16, 1)),
        (16, 4, None, None, None, (4, 1)),
        (16, 4, 2, None, None, (2, 2)),
        (16, 4, None, 4, None, (1, 4)),
        (16, 4, None, 2, None, (2, 2)),
        (16, 1, None, None, 4, (4, 4)),
        (16, 1, None, None, 32, (16, 1)),
        (16, 1, 8, None, 4, (8, 2)),  # it was asked for
        (5, 3, None, None, None, (2, 1)),
        (2, 3, None, None, None, (1, 1)),
        (4, 1, None, 3, None, (2, 3)),  # the third micro-batch is filled
        (4, 1, None, 3, 1, (2, 3)),
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
