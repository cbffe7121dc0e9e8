"""What a run has measured: metrics.jsonl, with a step and numbers by name on each line, and images.csv."""

import errno
import io
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_utils.analysis.dataset_info import DatasetInfo
from runtime.console import counted, say
from runtime.documents import MOST_BYTES_OF_DATA, open_regular, parse_csv, parse_json, read_bytes, write_row
from runtime.errors import WriteError, one_line
from runtime.files import replace_file

IMAGE_SCORES = "images.csv"  # the score of each validation image at the best evaluation, which runs are compared by
COLUMN = "image"
LogRecord = dict[str, Any]  # "step" is an int, "epoch" and all others are numbers, or None where nothing was measured


def read_log(folder: Path) -> tuple[list[LogRecord], int]:
    """The records in folder/metrics.jsonl, and the number of damaged lines between them. Raises OSError."""
    records: list[LogRecord] = []
    damaged = 0
    with open_regular(folder / "metrics.jsonl") as stream:
        for line in stream:
            if not line.endswith(b"\n"):  # a killed writer has left it
                break
            try:
                record = parse_json(line)
            except ValueError:
                record = {}
            numbers = [number for number in record.values() if number is not None]
            if type(record.get("step")) is int and all(type(number) in (int, float) for number in numbers):
                records.append(record)
            else:
                damaged += 1
    return records, damaged


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
        earlier = "".join(json.dumps(record) + "\n" for record in _records_up_to(path, step))
        with replace_file(path) as file:
            file.write(earlier.encode())

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


def _records_up_to(log: Path, step: int) -> list[LogRecord]:
    """What a run has logged until `step`; other content is left out with a message."""
    try:
        records, damaged = read_log(log.parent)
    except FileNotFoundError:
        if step:
            say(f"{log} is gone: it begins again behind step {step}")
        return []
    except OSError as error:
        raise WriteError(f"{log} cannot be read ({one_line(error)}); move it away") from error
    earlier = [record for record in records if record["step"] <= step]
    if damaged:
        say(f"{log}: {counted(damaged, 'damaged line is', 'damaged lines are')} left out, {len(earlier)} stay")
    return earlier


def write_image_scores(folder: Path, info: DatasetInfo, compared_by: str, comparisons: Sequence[float]) -> None:
    """Write folder/images.csv: a line for each validation image that is not skipped. Raises OSError.

    Args:
        compared_by: the name of the score that images are compared by, the title of the second column.
        comparisons: this score of each validation image.
    """
    text = io.StringIO()
    write_row(text, (COLUMN, compared_by))
    occurrences: dict[str, int] = {}
    for index, score in enumerate(comparisons):
        if index in info.val.bad:
            continue
        name = info.val.records.shown_name(index)
        occurrences[name] = occurrences.get(name, 0) + 1
        if occurrences[name] > 1:  # images of one name are in the same order in every run
            name = f"{name} ({occurrences[name]})"
        write_row(text, (name, f"{score:.9g}"))  # nine digits tell any two float32 apart
    with replace_file(folder / IMAGE_SCORES) as file:
        file.write(text.getvalue().encode())


def read_image_scores(folder: Path) -> dict[str, float]:
    """The score of each image by name. Raises OSError, and ValueError for a file that is no such table."""
    text = read_bytes(folder / IMAGE_SCORES, MOST_BYTES_OF_DATA).decode()
    rows = parse_csv(text)
    _, header = next(rows, (1, []))
    if len(header) != 2 or header[0] != COLUMN:
        raise ValueError(f"its first line is not {COLUMN!r} and a score")
    scores: dict[str, float] = {}
    for line, row in rows:
        if len(row) != 2 or not 0 <= float(row[1]) <= 1:
            raise ValueError(f"line {line} is not a name and a score from 0 to 1")
        scores[row[0]] = float(row[1])
    return scores
