"""How a batch is cut into micro-batches, and the record of what has fitted."""

import pytest

from train_utils.microbatch import MemoryLimit, memory_limit, split_batch


def test_a_batch_is_accumulated_over_no_more_micro_batches_than_it_has_images():
    split = split_batch(4, 2, None, 8)
    assert (split.micro_batch_size, split.accumulation) == (1, 2)


@pytest.mark.parametrize("content", ['{"micro_batch_size": 0}', '{"micro_batch_size": true}', '{"size": 2}', "[]", "{"])
def test_a_damaged_record_of_memory_is_said_and_left_out(tmp_path, capsys, content):
    (tmp_path / "memory.json").write_text(content)
    assert memory_limit(tmp_path) == MemoryLimit()
    assert "memory.json is damaged, and is made again if memory runs out (" in capsys.readouterr().out
