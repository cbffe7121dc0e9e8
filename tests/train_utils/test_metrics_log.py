"""The lines of metrics.jsonl."""

import json

import pytest

from train_utils.metrics_log import is_record, read_log, series


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ({"step": 1, "train/loss": None, "eval/loss": 2}, True),
        ({"step": 1.0}, False),
        ({"train/loss": 0.5}, False),
        ({"step": 1, "train/loss": "0.5"}, False),
    ],
)
def test_a_record_is_a_step_with_numbers(value, is_one):
    assert is_record(value) is is_one


def test_lines_that_are_no_records_are_left_out(tmp_path):
    records = [{"step": 1, "train/loss": 0.5}, {"step": 2, "train/loss": None}, {"step": 3, "train/loss": 0.0}]
    lines = [*records, {"train/loss": 0.5}, {"step": "4"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "{\n")
    assert read_log(tmp_path) == records
    assert series(records, "train/loss") == [(1, 0.5), (3, 0.0)]
    assert series(records, "eval/loss") == []
