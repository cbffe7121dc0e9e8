"""The log of a run: metrics.jsonl, with one record on each line: a step, and numbers by name."""

import errno
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.console import counted, say
from runtime.documents import read_json_lines
from runtime.errors import WriteError, one_line
from runtime.files import replace_file

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


class MetricsFile:
    """The file metrics.jsonl of a run.

    Lines that the disk refuses are written with a later one, and the first of them is reported.

    Args:
        step: the step at which the run starts. Later records of a killed run are dropped, so that curves have no
            repeats.
    """

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        self._refused = b""
        earlier = b"".join(_lines_up_to(path, step))
        with replace_file(path) as file:
            file.write(earlier)

    def write(self, step: int, epoch: float, values: dict[str, float | None]) -> None:
        """Append a record; what is no finite number is null."""
        record: dict[str, float | None] = {"step": step, "epoch": round(epoch, 4)}
        for name, value in values.items():
            is_number = value is not None and math.isfinite(value)  # NaN is no JSON
            record[name] = value if is_number else None
        self._append(json.dumps(record) + "\n")

    def is_saved(self) -> bool:
        """Whether all lines are on disk; refused lines are written again first."""
        if self._refused:
            self._append("")
        return not self._refused

    def _append(self, line: str) -> None:
        """Append the lines that the disk has refused so far and then this line, all or none."""
        is_first = not self._refused
        self._refused += line.encode()
        try:
            with self.path.open("rb+", buffering=0) as file:  # a folder that has vanished is not made again
                end = file.seek(0, os.SEEK_END)
                if file.write(self._refused) < len(self._refused):
                    file.truncate(end)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._refused = b""
        except OSError as error:
            if is_first:
                say(f"{self.path} could not be written ({error}); training goes on, and tries again")


def _lines_up_to(log: Path, step: int) -> list[bytes]:
    """The lines that a run has logged until `step`; other content is left out with a message."""
    try:
        lines, damaged = read_json_lines(log)
    except FileNotFoundError:
        if step:
            say(f"{log} is gone: it begins again behind step {step}")
        return []
    except OSError as error:
        raise WriteError(f"{log} cannot be read ({one_line(error)}); move it away") from error
    earlier = []
    for line, record in lines:
        if not is_record(record):
            damaged += 1
        elif record["step"] <= step and line.endswith(b"\n"):
            earlier.append(line)
    if damaged:
        say(f"{log}: {counted(damaged, 'damaged line is', 'damaged lines are')} left out, {len(earlier)} stay")
    return earlier
