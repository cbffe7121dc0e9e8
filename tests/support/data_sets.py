"""What is known of a data set, and whether a change of its files is noticed."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from data_utils.analysis.dataset_info import DatasetInfo
from data_utils.config import DataConfig
from train_utils.dataset import load_dataset_info


def load_info(dataset: object, **settings) -> DatasetInfo:
    """What is known of a data set: `settings` as in DataConfig."""
    return load_dataset_info(DataConfig(str(dataset), **settings))


def unnoticed_changes(files: Iterable[Path], key: Callable[[], object]) -> list[str]:
    """What may change of files, their size alone or their time alone, while `key()` stays the same."""
    key_before = key()
    changes = []
    for file in files:
        content = file.read_bytes()
        time = file.stat().st_mtime_ns
        rewrite(file, content + b"\n", time)
        if key() == key_before:
            changes.append(f"size of {file.name}")
        rewrite(file, content, time + 1)
        if key() == key_before:
            changes.append(f"time of {file.name}")
        rewrite(file, content, time)
    assert key() == key_before
    return changes


def rewrite(file: Path, content: bytes, time: int) -> None:
    """Give a file this content, as if it had been written at a time in nanoseconds."""
    file.write_bytes(content)
    os.utime(file, ns=(time, time))
