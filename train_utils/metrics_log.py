"""The log of a run: metrics.jsonl, with one record on each line: a step, and numbers by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.documents import read_json_lines

LogRecord = dict[str, Any]  # "step" is an int, "epoch" and all others are numbers, or None where nothing was measured


def read_log(folder: Path) -> list[LogRecord]:
    """The records in folder/metrics.jsonl; other lines are left out."""
    lines, _ = read_json_lines(folder / "metrics.jsonl")
    return [record for _, record in lines if is_record(record)]


def is_record(value: dict[str, Any]) -> bool:
    """Whether an object is a record of metrics.jsonl: a step, and numbers by name."""
    numbers = [number for number in value.values() if number is not None]
    return type(value.get("step")) is int and all(type(number) in (int, float) for number in numbers)


def series(records: Sequence[LogRecord], key: str) -> list[tuple[int, float]]:
    """The (step, value) pairs of the records that have a value for `key`."""
    return [(record["step"], record[key]) for record in records if record.get(key) is not None]
